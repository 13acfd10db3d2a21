use brig_proto::v1::{Artifact, ExecutionSpec};

use super::*;
use crate::artifacts::Spool;
use crate::run::testing::{execution, principal};

const MOST: Held = Held {
    memory_bytes: 1 << 20,
    files: 3,
    file_bytes: 100,
};

/// Enters an execution that ends with one file of each of these sizes.
async fn end(registry: &Registry, spool: &Spool, id: &str, sizes: &[usize]) {
    let execution = execution(id, ExecutionSpec::default());
    assert!(matches!(registry.enter(&execution), Ok(Entered::New)));
    for size in sizes {
        let mut file = spool.create(1000).await.unwrap();
        file.write(vec![1; *size].into()).await.unwrap();
        let file = Arc::new(file.finish().unwrap());
        execution.log.artifact(Artifact::default(), Some(file));
    }
    registry.ended(&execution);
}

fn known(registry: &Registry) -> Vec<String> {
    let mut ids: Vec<_> = registry.list(&principal()).iter().map(|e| e.id.to_string()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn the_oldest_are_forgotten_first_when_there_are_too_many_files() {
    let registry = Registry::new(MOST);
    let spool = Spool::new(&std::env::temp_dir(), 1000, 100);
    end(&registry, &spool, "a", &[1, 1]).await;
    end(&registry, &spool, "b", &[1]).await;
    end(&registry, &spool, "c", &[]).await;
    assert_eq!(known(&registry), ["a", "b", "c"]);
    end(&registry, &spool, "d", &[1]).await;
    assert_eq!(known(&registry), ["b", "c", "d"]);
    assert_eq!(spool.used_bytes(), 2, "their files are gone with them");
    let gone = registry.get(&principal(), "execution_id", "a").unwrap_err();
    assert_eq!(gone.reason(), Reason::ExecutionNotFound);
}

#[tokio::test]
async fn the_oldest_are_forgotten_first_when_their_files_are_too_large() {
    let registry = Registry::new(MOST);
    let spool = Spool::new(&std::env::temp_dir(), 1000, 100);
    end(&registry, &spool, "a", &[50]).await;
    end(&registry, &spool, "b", &[50]).await;
    assert_eq!(known(&registry), ["a", "b"]);
    end(&registry, &spool, "c", &[60]).await;
    assert_eq!(known(&registry), ["c"]);
    end(&registry, &spool, "d", &[101]).await;
    assert_eq!(
        (known(&registry).len(), spool.used_bytes()),
        (0, 0),
        "one alone may be too large"
    );
}
