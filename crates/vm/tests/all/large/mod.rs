//! Large pages: what becomes one, what is done with all of it or with a part, and what others do
//! meanwhile.

mod collapse;
mod formats;
mod memory;
mod moments;
mod parts;
mod reclaim;
mod threads;
mod world;
