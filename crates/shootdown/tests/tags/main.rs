//! Tags that run out, pinned ASIDs, avoided broadcasts, and pages that change their size, on a
//! machine that checks the tag of each root that a CPU loads.

#![expect(unsafe_code, reason = "switching is unsafe, and so is a machine")]

mod blocks;
mod hardware;
mod leaving;
mod pins;
mod solo;
mod stopped;
mod storm;

use shootdown::Extent;

fn page() -> Extent {
    Extent::page(0)
}
