//! The memory model of C++20 by its axioms: all executions of a small program, reorderings that no
//! interleaving shows included.
//!
//! A [`Program`] is data: threads of loads, stores, read-modify-writes and fences, whose orderings
//! can be those of the engine's own [rules](shootdown::Rule). [`enumerate`] builds every candidate
//! execution, which is a source for each load and an order of modification for each location, and
//! keeps those that satisfy the axioms of RC11: Lahav, Vafeiadis, Kang, Hur and Dreyer, "Repairing
//! Sequential Consistency in C/C++11", PLDI 2017, section 4.
//!
//! - *Coherence*: `hb; eco?` is irreflexive.
//! - *Atomicity*: no store comes between a read-modify-write and its source.
//! - *SC*: `psc_base ∪ psc_F` is acyclic.
//! - *No thin air*: `sb ∪ rf` is acyclic.
//!
//! One definition is that of C++20, which is weaker (P0982): a release sequence consists of its
//! head and read-modify-writes, without the later stores of the head's own thread.
//!
//! Every prefix of an execution that satisfies the axioms satisfies them as well. An execution can
//! therefore grow step by step: a load reads from a store that exists already (no thin air), and a
//! prefix that violates an axiom is dropped.
//!
//! # Limits
//!
//! The checker has no page tables, TLBs or interrupts, and no loops: a thread [stops] where a
//! loaded value is not one of those on which it continues. Values are constants. A program has at
//! most 64 events, initial values included. A program that stands for a part of the engine is that
//! part reduced by hand: the orderings come from the engine, the sequence of accesses does not.
//!
//! [stops]: Step::only_if

mod relation;
mod program;
mod execution;
mod axioms;
mod enumerate;

pub(crate) use enumerate::{Enumeration, enumerate};
pub(crate) use execution::Execution;
pub(crate) use program::{
    Access, Name, Program, Site, Step, Thread, add, compare_exchange, fence, load, store, swap,
};
