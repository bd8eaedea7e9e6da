//! One connection of a client: reads and writes its memory as told, and looks at every byte.

use super::wire::{Outcome, Reply, Request, Wish, sum};
use crate::Transport;
use crate::cli::bytes::fill;
use crate::cli::clock;
use memreg_core::drive::Driven;
use memreg_core::error::Disposition;
use memreg_core::mem::DmaBuf;
use memreg_core::transport::{LocalOp, State, error::DownCause};
use memreg_core::types::{Segment, Tick};
use std::time::{Duration, Instant};

/// Driven by [`drive`](Session::drive) until it says how it ended.
#[derive(Debug)]
pub struct Session {
    t: Transport,
    op_bytes_most: u64,
    patience: Duration,
    start: Instant,
    /// When the client last wanted something.
    heard: Instant,
    /// Away only while the device has it.
    buf: Option<DmaBuf>,
    /// Bytes of the buffer that the last read brought, and their sum.
    held: (usize, u64),
    job: Option<Job>,
    reply: Option<(Reply, Option<Segment>)>,
    message: Vec<u8>,
    /// The first thing that went wrong, until somebody takes it.
    pub complaint: Option<String>,
    pub tally: Tally,
}

/// What a session has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Reads and writes that ended well.
    pub transfers: u64,
    pub bytes: u64,
    /// Reads that brought other bytes than the client had.
    pub wrong: u64,
    /// Messages that made no sense.
    pub refused: u64,
}

/// How a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The client left between two operations.
    Left,
    /// Something else.
    Fault(String),
}

/// A request that is being carried out.
#[derive(Debug)]
struct Job {
    request: Request,
    /// The segment that is next or under way, and where its bytes start.
    next: usize,
    at: usize,
    op: Option<LocalOp>,
    checking: Duration,
}

impl Session {
    /// Takes over a transport that is up.
    pub fn new(t: Transport, op_bytes_most: u64, patience: Duration) -> Session {
        let now = clock::now();
        Session {
            t,
            op_bytes_most,
            patience,
            start: now,
            heard: now,
            buf: None,
            held: (0, 0),
            job: None,
            reply: None,
            message: vec![],
            complaint: None,
            tally: Tally::default(),
        }
    }

    /// Does what can be done now; true if anything happened.
    pub fn drive(&mut self) -> Result<bool, Ended> {
        let now = Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let driven = self.t.drive(now);
        let mut any = driven.map_err(|e| Ended::Fault(format!("polling: {e}")))?;
        match self.t.state() {
            State::Up => {}
            State::Down(cause) => return Err(self.ended(cause)),
            // The cause is known when it is down.
            _ => return Ok(any),
        }
        any |= self.answer()?;
        if self.reply.is_none() && self.job.is_none() {
            any |= self.hear();
        }
        any |= self.work()?;
        if any {
            self.heard = clock::now();
        } else if self.heard.elapsed() > self.patience {
            let seconds = self.patience.as_secs();
            return Err(Ended::Fault(format!("was silent for {seconds} s (--patience)")));
        }
        Ok(any)
    }

    fn ended(&self, cause: &DownCause) -> Ended {
        let busy = self.job.is_some() || self.reply.is_some();
        match cause {
            DownCause::PeerGone if busy => {
                Ended::Fault("left in the middle of an operation".to_owned())
            }
            DownCause::PeerGone => Ended::Left,
            other if busy => Ended::Fault(format!("its operation failed: {other}")),
            other => Ended::Fault(other.to_string()),
        }
    }

    /// Sends the reply that waits, if there is room for it.
    fn answer(&mut self) -> Result<bool, Ended> {
        let Some((reply, invalidate)) = &self.reply else { return Ok(false) };
        let wire = reply.to_wire();
        let sent = match invalidate {
            Some(segment) => self.t.send_with_inv(&wire, segment),
            None => self.t.send(&wire, memreg_core::transport::Reply::InvalidatesNothing),
        };
        match sent {
            Ok(()) => {
                self.reply = None;
                Ok(true)
            }
            Err(e) if e.disposition() == Disposition::Retry => Ok(false),
            Err(e) => Err(Ended::Fault(format!("replying: {e}"))),
        }
    }

    /// Takes the next message. One that cannot be read is answered, for the client to say so.
    fn hear(&mut self) -> bool {
        let mut message = std::mem::take(&mut self.message);
        let came = self.t.recv(&mut message).is_some();
        if came {
            match Request::get(&message, &self.t).and_then(|r| self.begin(r)) {
                Ok(job) => self.job = Some(job),
                Err(why) => {
                    let why = format!("the request cannot be carried out: {why}");
                    self.tally.refused += 1;
                    self.complaint.get_or_insert_with(|| why.clone());
                    self.reply = Some((Reply::refused(why), None));
                }
            }
        }
        self.message = message;
        came
    }

    /// Looks whether a request makes sense, and gets the buffer ready.
    fn begin(&mut self, request: Request) -> Result<Job, String> {
        let lens = request.segments.iter().map(|s| s.len);
        let len = lens.fold(0u64, u64::saturating_add);
        let most = self.op_bytes_most;
        let fits = usize::try_from(len).ok().filter(|_| len <= most);
        let len = fits.ok_or_else(|| too_large(len, most))?;
        let start = clock::now();
        match request.wish {
            Wish::Read => self.fresh_buffer(len, request.sum)?,
            Wish::Write if self.held == (len, request.sum) => {}
            Wish::Write => {
                return Err(format!("{len} bytes were not read before they are to be written"));
            }
        }
        Ok(Job { request, next: 0, at: 0, op: None, checking: start.elapsed() })
    }

    /// A buffer in which nothing is right by chance.
    fn fresh_buffer(&mut self, len: usize, seed: u64) -> Result<(), String> {
        if self.buf.as_ref().is_none_or(|b| b.len() < len) {
            self.buf = Some(DmaBuf::new(len).map_err(|e| e.to_string())?);
        }
        self.held = (0, 0);
        if let Some(buf) = &mut self.buf {
            fill(!seed, &mut buf[..len]);
        }
        Ok(())
    }

    /// Goes on with the job: one segment after the other, then the reply.
    fn work(&mut self) -> Result<bool, Ended> {
        let Some(mut job) = self.job.take() else { return Ok(false) };
        if let Some(op) = job.op.take() {
            match self.t.take(op) {
                Ok(done) => {
                    self.buf = done.buffers.into_first();
                    if let Err(e) = done.result {
                        self.job = Some(job);
                        return Err(Ended::Fault(e.to_string()));
                    }
                    job.at += usize::try_from(job.segment().map_or(0, |s| s.len)).unwrap_or(0);
                    job.next += 1;
                }
                Err(e) => {
                    job.op = Some(e.op);
                    self.job = Some(job);
                    return Ok(false);
                }
            }
        }
        let Some(segment) = job.segment() else {
            self.finish(job);
            return Ok(true);
        };
        let started = self.access(&job, &segment);
        let (op, outcome) = match started {
            Ok(op) => {
                let any = op.is_some();
                (op, Ok(any))
            }
            Err(e) => (None, Err(e)),
        };
        self.job = Some(Job { op, ..job });
        outcome
    }

    /// Starts with one segment; `None` if the queue has no room now.
    fn access(&mut self, job: &Job, segment: &Segment) -> Result<Option<LocalOp>, Ended> {
        let fault = |why: String| Ended::Fault(format!("cannot reach its memory: {why}"));
        let buf = self.buf.take().ok_or_else(|| fault("the buffer is lost".to_owned()))?;
        let len = usize::try_from(segment.len).unwrap_or(usize::MAX);
        let part = (buf, job.at..job.at.saturating_add(len));
        let begun = match job.request.wish {
            Wish::Read => self.t.read(segment, 0, part),
            Wish::Write => self.t.write(segment, 0, part),
        };
        match begun {
            Ok(op) => Ok(Some(op)),
            Err(e) => {
                let retry = e.disposition() == Disposition::Retry;
                let why = e.to_string();
                self.buf = e.buffers.into_first();
                if retry { Ok(None) } else { Err(fault(why)) }
            }
        }
    }

    /// All bytes are here, or there.
    fn finish(&mut self, job: Job) {
        let Request { wish, invalidate, sum: wanted, segments } = job.request;
        let mut reply = Reply { outcome: Outcome::Done, checking: job.checking, sum: wanted };
        if wish == Wish::Read {
            let start = clock::now();
            let bytes = self.buf.as_ref().and_then(|b| b.get(..job.at)).unwrap_or_default();
            reply.sum = sum(bytes);
            self.held = (job.at, reply.sum);
            reply.checking += start.elapsed();
        }
        if reply.sum == wanted {
            self.tally.transfers += 1;
            self.tally.bytes += job.at as u64;
        } else {
            self.tally.wrong += 1;
            let text = || format!("{} bytes were read, and not all as they were", job.at);
            self.complaint.get_or_insert_with(text);
            reply.outcome = Outcome::WrongSum;
        }
        self.reply = Some((reply, segments.first().copied().filter(|_| invalidate)));
    }
}

impl Job {
    fn segment(&self) -> Option<Segment> {
        self.request.segments.get(self.next).copied()
    }
}

/// Why an operation is not done, and what to do; short enough for a rejection.
pub fn too_large(need: u64, most: u64) -> String {
    format!(
        "{need} bytes in one operation, the server takes {most}: raise its memory.max_payload, or \
         lower --sizes"
    )
}
