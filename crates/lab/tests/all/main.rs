//! All integration tests of the crate in one executable, so that generic code is instantiated and
//! linked once.

mod boot;
mod cases;
mod choice;
mod command;
mod common;
mod comparisons;
mod designs;
mod guest;
mod import;
mod explain;
mod files;
mod machines;
mod matrix;
mod record;
mod replay;
mod report;
mod run;
mod sanitize;
mod sweep;
mod tags;
mod top;
mod traces;
