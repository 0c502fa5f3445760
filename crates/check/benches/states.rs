//! The speed of the checker on this host: states per second in exhaustive searches of small
//! programs, and steps per second of large random ones. It uses one CPU of the host; a campaign
//! uses all.
//!
//! There is no limit to fail, because hosts differ.

use std::time::{Duration, Instant};

use shootdown_check::engine::{Config, Programs};
use shootdown_check::{Budget, Profile, at_random, search};

const BUDGET: Budget = Budget { time: Duration::from_secs(60), states: usize::MAX };

fn main() {
    for text in ["run 0, leave, run 0 | unmap 0.0", "run 0, unmap 0.0, run 0 | reclaim 0.0"] {
        for profile in [Profile::X86, Profile::ARM64] {
            let programs = Programs::parse(Config::new(2), text).expect("the text is valid");
            let start = Instant::now();
            let found = search(&programs, profile, None, BUDGET);
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{} `{text}`: {} states, {:.0} thousand states/s, {:.1} million steps/s",
                profile.name,
                found.states,
                found.states as f64 / seconds / 1e3,
                found.steps as f64 / seconds / 1e6
            );
        }
    }
    let (start, mut steps) = (Instant::now(), 0);
    for seed in 0..2000 {
        let programs = Programs::at_random(Config::new(8), 12, seed);
        steps += at_random(&programs, Profile::X86, seed, Budget { states: 4, ..BUDGET }).steps;
    }
    let speed = steps as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("x86, 8 CPUs at random: {speed:.1} million steps/s");
}
