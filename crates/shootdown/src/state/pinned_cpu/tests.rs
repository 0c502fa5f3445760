use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::ids::{CpuId, Root, SpaceId};
use crate::parts::extent::Extent;
use crate::soft::{Config, Host, Soft};

/// An unmasked interrupt in the middle of an operation. Only the flush interrupt may be handled
/// there.
#[test]
fn operation_within_an_operation_panics() {
    let engine = Soft::<Host>::engine(Config::default());
    let space = engine.space(Root(0));
    let cpu = engine.enter(CpuId(0));
    let pin = || cpu.pin();
    pin().online();
    let operations: [&dyn Fn(); 6] = [
        &|| pin().flush(&space, Extent::page(0)).wait(),
        &|| pin().flush_kernel(Extent::page(0)).wait(),
        &|| pin().enter_lazy(),
        &|| pin().leave_space(),
        &|| {
            pin().resume(SpaceId(1));
        },
        &|| pin().offline(),
    ];
    for operation in operations {
        let outer = pin();
        let hint = outer.begin_hint();
        assert!(catch_unwind(AssertUnwindSafe(operation)).is_err());
        pin().handle_flush_ipi();
        drop(hint);
        let busy = outer.begin();
        assert!(catch_unwind(AssertUnwindSafe(operation)).is_err());
        pin().handle_flush_ipi();
        drop(busy);
        operation();
    }
}
