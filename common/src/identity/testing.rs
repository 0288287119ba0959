//! A cluster for tests: an authority on a calendar that tests move by hand.

use std::sync::Arc;

use super::ca::{CERTIFICATE_LIFE, ClusterCa, Grant};
use super::csr::OwnKey;
use super::files::OwnIdentity;
use super::revocation::RevocationList;
use super::subject::{Role, TokenId};
use super::tls::TlsConfigs;
use crate::world::testing::FakeWall;
use crate::world::{Endpoint, EndpointOptions, NetError, NoCompute, RealNet, World};

pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) wall: Arc<FakeWall>,
    pub(crate) ca: ClusterCa,
    pub(crate) revoked: Arc<RevocationList>,
}

pub(crate) const START: u64 = 1_800_000_000;

pub(crate) fn rig() -> Rig {
    let wall = Arc::new(FakeWall::at(START));
    let mut world = World::real(Arc::new(NoCompute));
    world.wall = wall.clone();
    world.net = Arc::new(RealNet::new(wall.clone(), world.rng.clone()));
    Rig {
        ca: ClusterCa::create(&world).expect("an authority"),
        revoked: Arc::default(),
        world,
        wall,
    }
}

impl Rig {
    pub(crate) fn now(&self) -> u64 {
        self.world.wall.unix_seconds()
    }

    pub(crate) fn identity(&self, role: Role, name: &str) -> OwnIdentity {
        self.identity_of(role, name, TokenId::direct())
    }

    pub(crate) fn identity_of(&self, role: Role, name: &str, token_id: TokenId) -> OwnIdentity {
        let rng = self.world.rng.as_ref();
        let key = OwnKey::generate(rng).expect("key");
        let grant = Grant {
            role,
            name: name.parse().expect("name"),
            token_id,
            life: CERTIFICATE_LIFE,
        };
        let request = key.csr().expect("request");
        let certificate = self.ca.issue(&request, &grant, self.now(), rng);
        let ca = self.ca.certificate().clone();
        OwnIdentity::new(key, certificate.expect("issued"), ca).expect("belongs")
    }

    pub(crate) fn tls(&self, identity: &OwnIdentity) -> TlsConfigs {
        let (revoked, wall) = (self.revoked.clone(), self.world.wall.clone());
        TlsConfigs::cluster(identity, revoked, wall).expect("usable")
    }

    pub(crate) async fn bind(&self, addr: &str, tls: &TlsConfigs) -> Result<Endpoint, NetError> {
        let addr = addr.parse().expect("address");
        let options = EndpointOptions::default();
        self.world.net.endpoint(addr, tls, &options).await
    }

    pub(crate) async fn endpoint(&self, tls: &TlsConfigs) -> Endpoint {
        self.bind("127.0.0.1:0", tls).await.expect("a port")
    }

    pub(crate) async fn member(&self, role: Role) -> Endpoint {
        let identity = self.identity(role, role.as_str());
        self.endpoint(&self.tls(&identity)).await
    }
}
