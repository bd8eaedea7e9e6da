//! All connections of one run on one fabric, one clock and one generator.

use super::log::{Log, note};
use super::plan::{DRAIN_LIMIT_NS, Fault, Op, Plan};
use super::side::Side;
use super::tally::Tally;
use fastrand::Rng;
use memreg_core::device::Device;
use memreg_core::device::sim::{Fabric, SimDevice};
use memreg_core::drive::connect_pair;
use memreg_core::types::{DeviceId, Epoch, Tick};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// The whole run.
pub struct World {
    pub plan: Plan,
    pub rng: Rng,
    pub log: Log,
    pub fabric: Fabric,
    pub now: Tick,
    pub conns: Vec<Conn>,
    pub tally: Tally,
    /// Numbers of exposures and accesses.
    next: u64,
    /// Nodes that stand in for nodes that have gone.
    replaced: Vec<(DeviceId, SimDevice)>,
    weights: u32,
    /// The end of the run exposes buffers of its own, which no side knows of.
    pub own_buffers: bool,
}

/// Two ends.
pub struct Conn {
    pub sides: [Side; 2],
    /// Completions may have been lost or doubled: messages are not counted on, and what is stuck
    /// needs a disconnect.
    pub lossy: bool,
    /// The epochs with which the two are connected to each other.
    pub linked: Option<[Epoch; 2]>,
}

impl Conn {
    /// Both ends are up, and connected to each other.
    pub fn is_up(&self) -> bool {
        let [a, b] = &self.sides;
        a.is_up() && b.is_up() && self.linked == Some([a.epoch(), b.epoch()])
    }

    /// Side `s` and the other one.
    pub fn pair(&mut self, s: usize) -> (&mut Side, &mut Side) {
        let [a, b] = &mut self.sides;
        if s == 0 { (a, b) } else { (b, a) }
    }

    /// Connects the two if both are ready; whatever fails takes an end down.
    pub fn connect(&mut self) -> bool {
        let [a, b] = &mut self.sides;
        let ok = connect_pair(&mut a.t, &mut b.t).is_ok();
        self.linked = ok.then(|| [a.epoch(), b.epoch()]);
        a.connected();
        b.connected();
        ok
    }
}

impl World {
    /// Runs a seed to its end; returns the hash of all that happened.
    ///
    /// # Errors
    /// At the first violation, which has been printed: the traces of all sides.
    pub fn run(seed: u64, print: bool) -> Result<(u64, Tally), Vec<PathBuf>> {
        World::run_with(seed, print, |_| {})
    }

    /// As `run`, and `after` looks at the world after each step.
    pub fn run_with(
        seed: u64,
        print: bool,
        mut after: impl FnMut(&mut World),
    ) -> Result<(u64, Tally), Vec<PathBuf>> {
        let mut world = None;
        let run = catch_unwind(AssertUnwindSafe(|| {
            let world = world.insert(World::new(seed, print));
            for _ in 0..world.plan.steps {
                world.step();
                after(world);
            }
            world.finish();
        }));
        match (run, world) {
            (Ok(()), Some(world)) => Ok((world.log.hash(), world.tally)),
            (_, world) => Err(world.map_or(vec![], |w| w.keep_traces(seed))),
        }
    }

    fn keep_traces(&self, seed: u64) -> Vec<PathBuf> {
        let sides = self.conns.iter().enumerate().flat_map(|(c, conn)| {
            let sides = conn.sides.iter().enumerate();
            sides.map(move |(s, side)| (format!("{c}.{s}"), side.t.ledger()))
        });
        super::keep::traces(&format!("seed-{seed}"), sides)
    }

    fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::draw(&mut rng);
        let fabric = Fabric::new(rng.u64(..));
        let mut log = Log::new(print);
        note!(log, "{plan:?}");
        let shared = plan.shared_nodes.then(|| {
            let caps = &plan.sides[0];
            [0, 1].map(|s: usize| fabric.add_node(&format!("node{s}"), caps[s].caps.clone()))
        });
        let mut conns = vec![];
        for (c, sides) in plan.sides.iter().enumerate() {
            let sides = [0, 1].map(|s: usize| {
                let node = match &shared {
                    Some(nodes) => nodes[s].clone(),
                    None => fabric.add_node(&format!("node{c}.{s}"), sides[s].caps.clone()),
                };
                Side::open(sides[s].clone(), node).expect("nothing has gone wrong yet")
            });
            let mut conn = Conn { sides, lossy: false, linked: None };
            assert!(conn.connect(), "nothing has gone wrong yet");
            conns.push(conn);
        }
        let weights = plan.ops.iter().map(|(_, w)| w).sum();
        let mut tally = Tally { seeds: 1, ..Tally::default() };
        tally.connections = conns.len() as u64;
        let (now, next, replaced) = (Tick(0), 0, vec![]);
        let mut world = World {
            plan,
            rng,
            log,
            fabric,
            now,
            conns,
            tally,
            next,
            replaced,
            weights,
            own_buffers: false,
        };
        world.age();
        world
    }

    /// One operation, perhaps a fault before it, and the invariants after it.
    fn step(&mut self) {
        self.tally.steps += 1;
        if self.rng.u32(..1000) < self.plan.fault_rate {
            self.draw_fault();
        }
        let (c, s) = (self.rng.usize(..self.conns.len()), self.rng.usize(..2));
        let mut op = self.draw_op();
        if !self.conns[c].is_up() && self.rng.bool() {
            // Without a connection most operations have nothing to do.
            op = [Op::Reconnect, Op::Poll, Op::Step, Op::Tick][self.rng.usize(..4)];
        }
        note!(self.log, "{op:?} at {c}.{s}");
        self.act(op, c, s);
        self.check();
    }

    fn draw_op(&mut self) -> Op {
        let mut at = self.rng.u32(..self.weights);
        for &(op, weight) in &self.plan.ops {
            if at < weight {
                return op;
            }
            at -= weight;
        }
        Op::Poll
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn poll(&mut self, c: usize, s: usize) -> bool {
        let side = &mut self.conns[c].sides[s];
        match side.t.poll(self.now) {
            Ok(p) => {
                note!(self.log, "  {c}.{s} {p:?} {:?}", side.t.state());
                p.any()
            }
            Err(e) => {
                note!(self.log, "  {c}.{s} poll: {e}");
                assert!(self.plan.faults.contains(&Fault::PollFails) || side.node_gone, "{e}");
                !side.is_down()
            }
        }
    }

    pub fn tick(&mut self) {
        let ns = [1, 30, DRAIN_LIMIT_NS / 2][self.rng.usize(..3)];
        self.now = self.now.after(ns);
    }

    /// The node that takes the place of one that has gone.
    pub fn replacement(&mut self, gone: &SimDevice) -> SimDevice {
        let mut gone = gone.clone();
        while let Some((_, node)) = self.replaced.iter().find(|(id, _)| *id == gone.id()) {
            if node.alloc_pd().map(|pd| node.dealloc_pd(pd)).is_ok() {
                return node.clone();
            }
            gone = node.clone();
        }
        let node = self.fabric.add_node("spare", gone.caps());
        self.replaced.push((gone.id(), node.clone()));
        node
    }

    /// Brings the tags of some pools close to where they wrap.
    fn age(&mut self) {
        for c in 0..self.conns.len() {
            for s in 0..2 {
                if self.conns[c].sides[s].plan.aged {
                    let turns = self.rng.u32(1..1500);
                    for _ in 0..turns {
                        self.cycle(c, s);
                    }
                    note!(self.log, "aged {c}.{s} by {turns}");
                }
            }
        }
    }
}
