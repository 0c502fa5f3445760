//! The commands, each with its options, its errors and its output.

pub(crate) mod boot;
pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod export;
pub(crate) mod guest;
pub(crate) mod explain;
pub(crate) mod import;
pub(crate) mod machines;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod reproduce;
pub(crate) mod run;
pub(crate) mod sanitize;
pub(crate) mod sweep;
pub(crate) mod top;
