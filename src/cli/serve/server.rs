//! The port, and the sessions of all clients.

use super::session::{Ended, Session, Tally, too_large};
use super::wire::Terms;
use crate::cli::failure::{Failure, chain};
use crate::cli::target::Target;
use crate::cli::{Answer, SCHEMA, args, clock, diagnose, json};
use crate::{OpenError, Transport};
use anyhow::anyhow;
use memreg_config::Settings;
use memreg_core::device::verbs::cm::{CmError, Data, Listener, Request};
use memreg_core::device::{AnyDevice, Device};
use memreg_core::sizing::Ask;
use memreg_core::transport::OpenOptions;
use memreg_strategies::Fmr;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Serialize)]
struct Report {
    schema: u32,
    command: &'static str,
    device: &'static str,
    name: String,
    address: String,
    connections: u64,
    transfers: u64,
    bytes: u64,
    /// What went wrong with connections that had come about.
    faults: Vec<String>,
}

/// Listens and serves.
pub(super) fn run(
    settings: &Settings,
    args: &args::Serve,
    addr: SocketAddr,
    as_json: bool,
) -> Result<Answer, Failure> {
    let target = Target::open(settings)?;
    let listener = Listener::bind(&target.device, addr, BACKLOG)?;
    let address = listener.local_addr().to_string();
    let (kind, name) = (target.kind, target.device.name());
    diagnose(&format!("listening on {address}, {kind} {name}; Ctrl-C ends it"));
    let mut server = Server {
        device: target.device,
        listener,
        terms: Terms { op_bytes_most: settings.ask.max_payload_bytes },
        patience: Duration::from_secs(args.patience),
        sessions: vec![],
        connections: 0,
        total: Tally::default(),
        faults: vec![],
    };
    server.serve(args.once)?;
    let (total, faults) = (server.total, server.faults);
    let (transfers, bytes) = (total.transfers, total.bytes);
    let connections = server.connections;
    let failed = !faults.is_empty();
    let failure = failed.then(|| Failure::workload(anyhow!("{} faults, see above", faults.len())));
    let stdout = if as_json {
        let command = "serve";
        json(&Report {
            schema: SCHEMA,
            command,
            device: kind,
            name,
            address,
            connections,
            transfers,
            bytes,
            faults,
        })
    } else {
        format!("{connections} connections, {transfers} transfers, {bytes} bytes\n")
    };
    Ok(Answer { stdout, failure })
}

struct Server {
    device: AnyDevice,
    listener: Listener,
    terms: Terms,
    patience: Duration,
    sessions: Vec<(String, Session)>,
    connections: u64,
    total: Tally,
    faults: Vec<String>,
}

impl Server {
    fn serve(&mut self, once: bool) -> Result<(), Failure> {
        let (mut quiet, mut broken) = (clock::now(), 0);
        loop {
            let mut any = false;
            match self.listener.request() {
                Ok(None) => broken = 0,
                Ok(Some(request)) => {
                    any = true;
                    self.admit(request);
                }
                // One client's bad luck, unless it is everybody's.
                Err(e) => {
                    broken += 1;
                    diagnose(&format!("a client was not taken: {e}"));
                    if broken == BROKEN_MOST {
                        return Err(e.into());
                    }
                }
            }
            any |= self.drive();
            if once && self.connections > 0 && self.sessions.is_empty() {
                return Ok(());
            }
            if any {
                quiet = clock::now();
            } else if self.sessions.is_empty() {
                self.listener.wait(NOBODY_THERE)?;
            } else if quiet.elapsed() > PAUSE {
                self.listener.wait(SOMEBODY_THERE)?;
            } else if quiet.elapsed() > SPIN {
                // Where there are few processors, the client needs one too.
                std::thread::yield_now();
            }
        }
    }

    /// Makes a session of a request, or refuses it with the reason.
    fn admit(&mut self, request: Request) {
        let who = request.peer().map_or_else(|| "a client".to_owned(), |a| a.to_string());
        match self.accept(request) {
            Ok(session) => {
                diagnose(&format!("{who} connected"));
                self.connections += 1;
                self.sessions.push((who, session));
            }
            Err(why) => diagnose(&format!("{who} refused: {why}")),
        }
    }

    fn accept(&self, request: Request) -> Result<Session, String> {
        let mut t = match self.prepare(&request) {
            Ok(t) => t,
            Err(why) => {
                // That it has gone meanwhile changes nothing here.
                let _ = request.refuse(&why);
                return Err(why);
            }
        };
        let terms = self.terms.to_wire();
        request.accept(&mut t, Data::Hello(&terms)).map_err(|e| chain(&e.into()))?;
        Ok(Session::new(t, self.terms.op_bytes_most, self.patience))
    }

    /// Everything that can be known before a request is accepted.
    fn prepare(&self, request: &Request) -> Result<Transport, String> {
        if self.sessions.len() >= SESSIONS_MOST {
            return Err(format!("{SESSIONS_MOST} connections are served already; try again later"));
        }
        let hello = request.hello().map_err(|e| format!("the greeting {e}"))?;
        let asked = Terms::from_wire(&hello.data)?;
        if asked.op_bytes_most > self.terms.op_bytes_most {
            return Err(too_large(asked.op_bytes_most, self.terms.op_bytes_most));
        }
        let ask = Ask { credits: CREDITS, ..Ask::default() };
        let options = OpenOptions { ask, ..OpenOptions::default() };
        let opened = Transport::open(self.device.clone(), Fmr::new().into(), &options);
        opened.map_err(|e| format!("the server: {}", chain(&OpenError::from(e).into())))
    }

    /// Goes on with every session; true if anything happened.
    fn drive(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some((who, session)) = self.sessions.get_mut(at) {
            let driven = session.drive();
            let complaint = session.complaint.take().map(|what| format!("{who}: {what}"));
            let ended = match driven {
                Ok(happened) => {
                    any |= happened;
                    at += 1;
                    None
                }
                Err(Ended::Left) => Some(None),
                Err(Ended::Fault(what)) => Some(Some(format!("{who}: {what}"))),
            };
            for fault in complaint.into_iter().chain(ended.clone().flatten()) {
                diagnose(&fault);
                self.faults.push(fault);
            }
            if ended.is_some() {
                any = true;
                let (who, session) = self.sessions.swap_remove(at);
                let Tally { transfers, bytes, .. } = session.tally;
                diagnose(&format!("{who} left after {transfers} transfers, {bytes} bytes"));
                self.total.transfers += transfers;
                self.total.bytes += bytes;
            }
        }
        any
    }
}

impl From<CmError> for Failure {
    fn from(e: CmError) -> Failure {
        match e {
            CmError::NoLibrary { .. }
            | CmError::NoKernelSupport { .. }
            | CmError::NotLocal { .. }
            | CmError::WrongDevice { .. } => Failure::unsuitable(e),
            _ => Failure::workload(e),
        }
    }
}

/// Requests that wait while others are taken.
const BACKLOG: u16 = 64;
const SESSIONS_MOST: usize = 64;
/// Errors of the port in a row before it is given up.
const BROKEN_MOST: u32 = 16;
/// One operation is in flight at a time.
const CREDITS: u32 = 4;
/// Longer than an answer takes from hardware.
const SPIN: Duration = Duration::from_micros(50);
/// Longer than any pause between two operations that are measured.
const PAUSE: Duration = Duration::from_millis(20);
const NOBODY_THERE: Duration = Duration::from_millis(500);
const SOMEBODY_THERE: Duration = Duration::from_millis(1);
