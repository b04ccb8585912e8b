//! A Redis that asks who is there.

use super::*;

const SECRETS: [&str; 3] = ["s3cret-of-all", "s3cret-of-app", "s3cret-not-it"];

impl World<'_> {
    /// A rule with a cache and these settings, whether it can be in force or not.
    fn tries(&self, settings: &str) -> bool {
        let results = ["ok", "error"];
        let loaded = || {
            let sample = |result| format!("underpass_reloads_total{{result=\"{result}\"}}");
            results.map(|result| self.agent.metric(&sample(result)).unwrap())
        };
        let before = loaded();
        let port = self.database.addr().port();
        let cache = format!(
            "redis = \"{REDIS}\", tables = [\"shop.orders\"], ttl = \"10m\", timeout = \"10s\"{settings}"
        );
        let policy = format!(
            "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\naction = \"enrich\"\n\
             pipeline = [{{ transform = \"cache\", {cache} }}]\n"
        );
        self.agent.write_policy(&policy).unwrap();
        self.agent.signal(Signal::SIGHUP).unwrap();
        eventually("the policy was read", || loaded() != before);
        loaded()[0] > before[0]
    }

    fn refused(&self) -> u64 {
        self.cached("failures", "cause=\"refused\"")
    }

    /// The database answers, and the cache does not.
    fn expect_refused(&self, settings: &str) {
        assert!(self.tries(settings));
        let mut client = self.client(4);
        let (before, hits) = (self.refused(), self.reads("hit"));
        eventually("it is refused", || {
            assert_eq!(reads(&mut client), "right");
            self.refused() > before
        });
        assert_eq!(self.reads("hit"), hits);
    }

    /// The cache answers.
    fn expect_let_in(&self, settings: &str) {
        assert!(self.tries(settings));
        let mut client = self.client(4);
        let hits = self.reads("hit");
        eventually("it is answered from the cache", || {
            assert_eq!(reads(&mut client), "right");
            self.reads("hit") > hits
        });
    }
}

#[test]
fn it_logs_in_with_the_password_of_a_file_and_never_tells_it() {
    with_redis("cache_login", |world, redis| {
        let [all, app, wrong] = SECRETS;
        let made = redis.does(&format!("ACL SETUSER app on >{app} ~* &* +@all"));
        assert_eq!(made, "+OK");
        assert_eq!(redis.does(&format!("CONFIG SET requirepass {all}")), "+OK");
        world.client(4).inserts(1, "right");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let named = |user: &str| format!(", {user}password_file = \"{}\"", file.display());
        let of_file = |password: &str| std::fs::write(&file, format!("{password}\n")).unwrap();

        world.expect_refused("");
        of_file(wrong);
        world.expect_refused(&named(""));
        of_file(all);
        world.expect_let_in(&named(""));
        // As a user, whose password is another.
        world.expect_refused(&named("username = \"app\", "));
        of_file(app);
        world.expect_let_in(&named("username = \"app\", "));
        // What is in force stays, where the file has nothing for it.
        of_file("");
        assert!(!world.tries(&named("")));
        std::fs::remove_file(&file).unwrap();
        assert!(!world.tries(&named("")));
        let log = world.agent.log();
        let says = format!("password_file: {}: ", file.display());
        assert_eq!(log.matches(&says).count(), 2, "{log}");
        let mut client = world.client(4);
        let hits = world.reads("hit");
        assert_eq!(reads(&mut client), "right");
        assert_eq!(world.reads("hit"), hits + 1);

        let metrics = format!("{:?}", world.agent.metrics().unwrap());
        for secret in SECRETS {
            assert!(!log.contains(secret), "{log}");
            assert!(!metrics.contains(secret));
        }
    });
}
