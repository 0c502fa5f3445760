//! All integration tests of the crate in one executable, so that the crate is instantiated and
//! linked once.

mod abis;
mod arc;
mod arm64;
mod batch;
mod batch_storm;
mod invlpgb;
mod latr;
mod lifetimes;
mod luf;
mod linux_7_0;
mod linux_7_3;
mod names;
mod preempted;
mod rig;
mod riscv;
