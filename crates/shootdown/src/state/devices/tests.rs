use super::*;
use crate::base::ids::{CpuId, Root};
use crate::soft::{Config, Host, Soft};

#[test]
#[cfg_attr(miri, ignore = "takes seconds, and runs no unsafe code that others do not")]
fn space_has_up_to_255_devices() {
    let engine = Soft::<Host>::engine(Config::default());
    let space = engine.space(Root(0));
    for _ in 0..255 {
        engine.attach_device(&space).unwrap();
    }
    assert_eq!(engine.attach_device(&space), Err(TooManyDevices));
    // SAFETY: there are no devices.
    let detach = || unsafe { engine.detach_device(&space) };
    detach();
    engine.attach_device(&space).unwrap();
    (0..255).for_each(|_| detach());
    assert!(!space.has_devices(engine.machine()));
    assert_eq!(space.cpumask.phase(engine.machine()).0, 0);
}

#[test]
#[should_panic = "detached more often than attached"]
fn detach_without_device_panics() {
    let engine = Soft::<Host>::engine(Config::default());
    // SAFETY: there are no devices.
    unsafe { engine.detach_device(&engine.space(Root(0))) };
}

#[test]
#[should_panic = "another engine's"]
fn attach_to_space_of_another_engine_panics() {
    let engines = [(); 2].map(|()| Soft::<Host>::engine(Config::default()));
    let [space, _] = engines.each_ref().map(|engine| engine.space(Root(0)));
    let _ = engines[1].attach_device(&space);
}

#[test]
fn trim_keeps_devices() {
    let engine = Soft::<Host>::engine(Config::default());
    engine.enter(CpuId(0)).pin().online();
    let space = engine.space(Root(0));
    engine.attach_device(&space).unwrap();
    assert!(engine.enter(CpuId(0)).pin().trim_cpumask(&space));
    assert!(space.has_devices(engine.machine()));
    assert_eq!(space.cpumask.phase(engine.machine()).epoch(), 1);
}
