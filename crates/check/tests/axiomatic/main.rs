//! The axiomatic memory model: first compared with litmus tests of published verdicts, then applied
//! to parts of the engine, reduced by hand.

mod model;

mod engine;
mod litmus;
