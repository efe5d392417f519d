//! Two ends of a connection in every order of events that chance makes: nothing is lost, nothing hangs, nothing is
//! left over.

use std::{pin::pin, rc::Rc, time::Duration};

use proptest::{collection::vec, prelude::*};
use tokio::{
    io::{DuplexStream, ReadHalf, WriteHalf, duplex, split},
    runtime::{Builder, LocalOptions},
    task::{JoinHandle, JoinSet, spawn_local, yield_now},
    time::{sleep, timeout},
};

use super::*;
use crate::{packet::ResetCode, read_buffer::ReadBuffer, ws::Decoder};

/// Virtual time in which every case must be over: far more than all its pauses together.
const PATIENCE: Duration = Duration::from_secs(300);

/// After so much of it nothing more will come.
const SILENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
struct Case {
    protocol: u8,
    window: u32,
    /// What earlier streams have found the line to need.
    learned: u64,
    /// Bytes that the line holds.
    line: usize,
    streams: Vec<[Side; 2]>,
    /// The connection breaks after so many steps of the runtime.
    breaks_after: Option<u8>,
}

/// What one end does with a stream, sending and receiving side by side.
#[derive(Clone, Debug)]
struct Side {
    sends: Vec<Step>,
    farewell: Farewell,
    /// Pieces that are received before their bytes are told consumed.
    batch: usize,
    pause: u8,
    /// Bytes after which it has read enough and leaves.
    enough: Option<usize>,
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Yield(u8),
    Sleep(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    Finish,
    Reset,
    ResetAfterQueue,
    /// Without waiting for the other side.
    Drop,
}

/// What one end saw of a stream.
#[derive(Debug)]
struct Seen {
    farewell: Farewell,
    sent: usize,
    received: usize,
    /// The other side's End was read.
    read_all: bool,
    /// It read as far as there was anything to read.
    wanted_all: bool,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1usize..200_000).prop_map(Step::Send),
        2 => (1usize..64).prop_map(Step::Send),
        2 => (1u8..6).prop_map(Step::Yield),
        1 => (1u8..40).prop_map(Step::Sleep),
    ]
}

fn side() -> impl Strategy<Value = Side> {
    let farewell = prop_oneof![
        6 => Just(Farewell::Finish),
        1 => Just(Farewell::Reset),
        1 => Just(Farewell::ResetAfterQueue),
        1 => Just(Farewell::Drop),
    ];
    let enough = prop_oneof![4 => Just(None), 1 => (0usize..300_000).prop_map(Some)];
    (vec(step(), 0..8), farewell, 1usize..4, 0u8..3, enough)
        .prop_map(|(sends, farewell, batch, pause, enough)| Side { sends, farewell, batch, pause, enough })
}

fn case(protocol: u8) -> impl Strategy<Value = Case> {
    let breaks = prop_oneof![4 => Just(None), 1 => (0u8..60).prop_map(Some)];
    let window = prop_oneof![Just(64 * 1024), Just(256 * 1024)];
    let learned = prop_oneof![Just(0), 0u64..2_000_000];
    (window, learned, 64usize..100_000, vec([side(), side()], 1..7), breaks).prop_map(
        move |(window, learned, line, streams, breaks_after)| Case {
            protocol,
            window,
            learned,
            line,
            streams,
            breaks_after,
        },
    )
}

/// The byte at a place of a stream's direction, so that nothing can be taken for anything else.
fn byte(stream: usize, end: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 11) ^ (stream * 2 + end).wrapping_mul(97)) as u8
}

/// `first` was received already.
async fn play(stream: Stream, first: Option<Bytes>, side: Side, number: usize, end: usize) -> Seen {
    let sent = std::cell::Cell::new(0);
    let sending = async {
        for step in &side.sends {
            match *step {
                Step::Yield(times) => {
                    for _ in 0..times {
                        yield_now().await;
                    }
                }
                Step::Sleep(milliseconds) => sleep(Duration::from_millis(milliseconds.into())).await,
                Step::Send(len) => {
                    if stream.ready().await.is_err() {
                        return;
                    }
                    let bytes: Vec<_> =
                        (sent.get()..sent.get() + len).map(|at| byte(number, end, at)).collect();
                    if stream.send(bytes.into()).is_err() {
                        return;
                    }
                    sent.set(sent.get() + len);
                }
            }
        }
        match side.farewell {
            Farewell::Finish => stream.finish(),
            Farewell::Reset => stream.reset(ResetCode::Cancelled),
            Farewell::ResetAfterQueue => stream.reset_after_queue(ResetCode::LocalFailed),
            Farewell::Drop => {}
        }
    };
    let received = std::cell::Cell::new(0);
    let receiving = async {
        let (mut held, mut pieces) = (0, 0);
        let mut first = first;
        while side.enough.is_none_or(|enough| received.get() < enough) {
            let next = match first.take() {
                Some(bytes) => Ok(Ok(Some(bytes))),
                None => timeout(SILENCE, stream.recv()).await,
            };
            match next {
                // Protocol 1's client says no End.
                Err(_) => return (false, false),
                Ok(Err(_)) => return (false, true),
                Ok(Ok(None)) => return (true, true),
                Ok(Ok(Some(bytes))) => {
                    let wanted =
                        (received.get()..received.get() + bytes.len()).map(|at| byte(number, 1 - end, at));
                    assert!(bytes.iter().copied().eq(wanted), "stream {number}: other bytes than were sent");
                    received.set(received.get() + bytes.len());
                    held += bytes.len();
                    pieces += 1;
                    if pieces % side.batch == 0 || held > 16 * 1024 {
                        stream.consumed(std::mem::take(&mut held));
                    }
                    for _ in 0..side.pause {
                        yield_now().await;
                    }
                }
            }
        }
        (false, false)
    };
    let (mut sending, mut receiving) = (pin!(sending), pin!(receiving));
    let (read_all, wanted_all) = tokio::select! {
        () = &mut sending => match side.farewell {
            Farewell::Drop => (false, false),
            _ => receiving.await,
        },
        end = &mut receiving => {
            // Whoever has read enough leaves, whatever it had to say.
            if end.1 {
                sending.await;
            }
            end
        }
    };
    let (sent, received) = (sent.get(), received.get());
    Seen { farewell: side.farewell, sent, received, read_all, wanted_all }
}

type Played = JoinSet<(usize, usize, Seen)>;

/// Reads one end of the line; plays the streams that come.
fn read(
    mux: &Mux,
    line: ReadHalf<DuplexStream>,
    sides: Rc<Vec<[Side; 2]>>,
    played: Rc<RefCell<Played>>,
) -> JoinHandle<()> {
    let mut reader = Reader::new(mux.clone(), line, Decoder::new(mux.settings().role), ReadBuffer::default());
    let mux = mux.clone();
    spawn_local(async move {
        while let Ok(incoming) = reader.next().await {
            if let Incoming::Opened(stream, about) = incoming {
                played.borrow_mut().spawn_local(answer(stream, about, sides.clone()));
            }
        }
        mux.abandon();
    })
}

async fn answer(stream: Stream, about: Bytes, sides: Rc<Vec<[Side; 2]>>) -> (usize, usize, Seen) {
    // Protocol 1 says nothing of a stream, but its first byte tells which it is.
    let first = if about.is_empty() { stream.recv().await.ok().flatten() } else { None };
    let is_it = |number: &usize| first.as_ref().is_some_and(|first| first[0] == byte(*number, 0, 0));
    let number = match about.first() {
        Some(number) => usize::from(*number),
        // One that ended before its first byte was read is like any other.
        None => (0..sides.len()).find(is_it).unwrap_or(0),
    };
    let seen = play(stream, first, sides[number][1].clone(), number, 1).await;
    (number, 1, seen)
}

fn write(mux: &Mux, mut line: WriteHalf<DuplexStream>) -> JoinHandle<()> {
    let mux = mux.clone();
    spawn_local(async move {
        let _ = write_all(&mux, &mut line).await;
    })
}

impl Mux {
    fn settings(&self) -> Settings {
        self.state.borrow().settings.clone()
    }

    fn assert_nothing_is_left(&self, who: &str) {
        let state = self.state.borrow();
        assert_eq!(state.streams.len(), 0, "{who}: streams");
        assert_eq!((state.unread, state.grown), (0, 0), "{who}: bytes that nobody holds any more");
        assert!(state.outbox.is_empty(), "{who}: packets that nobody will write");
    }
}

async fn run(case: Case) {
    let (here, there) = duplex(case.line);
    let settings = |role| Settings {
        role,
        protocol: case.protocol,
        send_window: case.window,
        receive_window: case.window,
        max_streams: 100,
    };
    let ends = [Role::Server, Role::Client].map(|role| Mux::new(settings(role), Instant::now()));
    for mux in &ends {
        mux.state.borrow_mut().learned = case.learned;
    }
    let sides = Rc::new(case.streams.clone());
    let played = Rc::new(RefCell::new(Played::new()));
    let mut tasks = Vec::new();
    for (mux, line) in ends.iter().zip([here, there]) {
        let (reading, writing) = split(line);
        tasks.push(read(mux, reading, sides.clone(), played.clone()));
        tasks.push(write(mux, writing));
    }
    for (number, [side, _]) in case.streams.iter().enumerate() {
        let stream = ends[0].open(vec![number as u8].into()).unwrap();
        let side = side.clone();
        played
            .borrow_mut()
            .spawn_local(async move { (number, 0, play(stream, None, side, number, 0).await) });
    }
    if let Some(steps) = case.breaks_after {
        for _ in 0..steps {
            yield_now().await;
        }
        ends.iter().for_each(Mux::abandon);
    }

    let mut seen: Vec<[Option<Seen>; 2]> = case.streams.iter().map(|_| [None, None]).collect();
    let all = async {
        loop {
            let next = std::future::poll_fn(|cx| played.borrow_mut().poll_join_next(cx)).await;
            match next {
                Some(played) => {
                    let (number, end, what) = played.unwrap();
                    seen[number][end] = Some(what);
                }
                None => {
                    // Virtual time passes once nothing else happens: what is on its way may open a stream over there.
                    sleep(Duration::from_millis(1)).await;
                    if played.borrow().is_empty() && ends.iter().all(|mux| mux.open_streams() == 0) {
                        break;
                    }
                }
            }
        }
    };
    let in_time = timeout(PATIENCE, all).await.is_ok();
    assert!(in_time, "hangs: {seen:?}");
    if case.breaks_after.is_none() {
        seen.iter().for_each(|ends| check(ends, case.protocol));
        // The last urgent packets.
        sleep(Duration::from_millis(10)).await;
        ends[0].assert_nothing_is_left("server");
        ends[1].assert_nothing_is_left("client");
    }
    ends.iter().for_each(Mux::abandon);
    for task in tasks {
        task.abort();
    }
}

/// Whoever finishes properly, towards somebody who reads to the end and breaks nothing off, is heard to the last byte.
fn check(ends: &[Option<Seen>; 2], protocol: u8) {
    for (from, to) in [(0, 1), (1, 0)] {
        let [Some(from), Some(to)] = [&ends[from], &ends[to]] else { continue };
        assert!(to.received <= from.sent);
        let says_end = protocol >= 2;
        let both_proper = from.farewell == Farewell::Finish && to.farewell == Farewell::Finish;
        if says_end && both_proper && to.wanted_all && from.wanted_all {
            assert!(to.read_all && to.received == from.sent, "{from:?} -> {to:?}");
        }
    }
}

fn play_out(case: Case) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .unwrap();
    runtime.block_on(run(case));
}

proptest! {
    #[test]
    fn protocol_2_in_every_order(case in case(2)) {
        play_out(case);
    }

    #[test]
    fn protocol_1_in_every_order(case in case(1)) {
        play_out(case);
    }
}
