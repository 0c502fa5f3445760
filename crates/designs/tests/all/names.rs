//! Names of designs, and the design for the name of a release.

use shootdown_designs::{Design, registry};

#[test]
fn every_design_has_one_name() {
    for &design in registry() {
        assert_eq!(design.name().parse(), Ok(design));
    }
    assert!("riscv(2)".parse::<Design>().is_err());
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
