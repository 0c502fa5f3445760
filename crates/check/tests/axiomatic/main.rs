//! The axiomatic memory model: first held against litmus tests with published verdicts, then asked
//! about parts of the engine, reduced by hand.

mod engine;
mod litmus;
