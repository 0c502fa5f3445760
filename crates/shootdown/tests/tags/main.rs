//! Tags that run out, pins, broadcasts that need not be sent, and pages that change their size: on
//! a machine that looks at what each CPU has loaded.

#![expect(unsafe_code, reason = "switching is unsafe, and so is a machine")]

mod blocks;
mod hardware;
mod leaving;
mod pins;
mod solo;
mod storm;

use shootdown::Extent;

fn page() -> Extent {
    Extent::page(0)
}
