//! Workloads of random operations on the software machine, one CPU on each thread.

mod worker;
mod churn;
mod lifecycles;

pub(crate) use churn::Churn;
pub(crate) use lifecycles::Lifecycles;
pub(crate) use worker::StressReport;
