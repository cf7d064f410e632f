//! A target that restarts while volumes are open, in process and through an engine: both report the same.

use isolane_host::{Buffer, Client, ConnectError, Difference, Request, RequestError};
use isolane_volume::{open, spec};

use crate::clients::{options, run};
use crate::world::World;

#[test]
fn rejects_another_volume_with_the_same_error_as_in_process() {
    let mut world = World::new();
    let mut clients = [Client::connect(&world.place(), options()).unwrap(), world.connect(options())];
    world.restart_target(|config| {
        let other = spec::parse("mem:64m,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427").unwrap();
        config.volumes = vec![(1, open(&other).unwrap())];
    });
    let texts = clients.each_mut().map(|client| {
        let completion = run(client, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) });
        let Err(RequestError::Lost(why)) = completion.result else { panic!("{completion:?}") };
        assert!(matches!(*why, ConnectError::VolumeChanged(Difference::Uuid(..))), "{why}");
        why.to_string()
    });
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].contains("1b4e28ba-2fa1-4d2b-883f-0016d3cca427"), "{}", texts[0]);
}
