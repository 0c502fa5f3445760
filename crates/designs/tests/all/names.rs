//! Names of designs, and the design for the name of a release.

use shootdown_designs::Design;

#[test]
fn batches_have_a_size_in_the_name() {
    let named = |name: &str| name.parse::<Design>().map(Design::name);
    for name in ["riscv(1)", "linux-7.0(512)", "shootdown(4096)"] {
        assert_eq!(named(name), Ok(name));
    }
    for name in ["riscv(0)", "riscv(4097)", "riscv()", "riscv(1", "riscv(1)(2)", "naive(8)"] {
        assert!(named(name).is_err(), "{name}");
    }
    assert_ne!("riscv(1)".parse(), Ok(Design::RISCV));
}

#[test]
fn releases_have_their_model() {
    for (release, model) in [
        ("6.12.38+deb13-amd64", Design::LINUX_6_12),
        ("5.15.0", Design::LINUX_6_12),
        ("6.13", Design::LINUX_6_12),
        ("6.14.0-rc1", Design::LINUX_7_0),
        ("7.0.4+deb14-amd64", Design::LINUX_7_0),
        ("unknown", Design::LINUX_7_0),
        ("", Design::LINUX_7_0),
    ] {
        assert_eq!(Design::closest_to(release), model, "{release}");
    }
}
