//! How long threads that do nothing but look at the clock are kept from it: the pauses of this machine under this load, beside
//! which a store's own are to be seen.
//!
//! usage: pauses SECONDS THREADS

use std::thread;
use std::time::{Duration, Instant};

/// Pauses of one length or longer are counted together.
const CLASSES_MS: [u64; 6] = [1, 2, 5, 10, 20, 50];

/// What one thread saw.
struct Seen {
    longest: Duration,
    counts: [u64; CLASSES_MS.len()],
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number =
        || arguments.next().and_then(|text| text.parse().ok()).ok_or("usage: pauses SECONDS THREADS");
    let (seconds, threads): (u64, u64) = (number()?, number()?);
    let until = Instant::now() + Duration::from_secs(seconds);
    let watching: Vec<_> = (0..threads).map(|_| thread::spawn(move || watch(until))).collect();
    for (thread, watching) in watching.into_iter().enumerate() {
        let seen = watching.join().map_err(|_| "a thread panicked")?;
        print!("thread {thread}: longest {:?}", seen.longest);
        CLASSES_MS.iter().zip(seen.counts).for_each(|(ms, count)| print!(", {count} of {ms} ms or more"));
        println!();
    }
    Ok(())
}

fn watch(until: Instant) -> Seen {
    let mut seen = Seen { longest: Duration::ZERO, counts: [0; CLASSES_MS.len()] };
    let mut last = Instant::now();
    while last < until {
        let now = Instant::now();
        let pause = now - last;
        last = now;
        if pause >= Duration::from_millis(CLASSES_MS[0]) {
            for (ms, count) in CLASSES_MS.iter().zip(&mut seen.counts) {
                *count += u64::from(pause >= Duration::from_millis(*ms));
            }
        }
        seen.longest = seen.longest.max(pause);
    }
    seen
}
