//! Any bytes as the answers of container runtimes.

use policy::{MAX_CONTAINER_TEXT_BYTES, Pod};

use super::{Speaks, book::MAX_LABELS, cri, docker, runtime::container};

/// Bounds of what is kept of a container; and only a kubelet's labels name a pod.
pub fn containers(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let (running, speaks) = match first % 4 {
        0 => (docker::listed(body).unwrap_or_default(), Speaks::Docker),
        1 => {
            let _ = docker::inspected(body);
            return;
        }
        2 => {
            // A list of containers, and one of pods.
            let (length, rest) = body.split_first_chunk().unwrap_or((&[0; 2], &[]));
            let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
            let (containers, pods) = rest.split_at(length);
            (
                cri::listed(containers, pods).unwrap_or_default(),
                Speaks::Cri,
            )
        }
        _ => {
            let _ = cri::inspected(body);
            return;
        }
    };
    for running in running {
        let of_labels = Pod::of_labels(&running.labels);
        let kept = container(running, "/a".into(), 1, speaks);
        assert!(kept.names.len() <= MAX_LABELS && kept.labels.len() <= MAX_LABELS);
        let labels = kept.labels.iter();
        let texts = labels
            .flat_map(|(key, value)| [key, value])
            .chain(&kept.names);
        assert!(
            texts
                .into_iter()
                .all(|text| text.len() <= MAX_CONTAINER_TEXT_BYTES)
        );
        assert_eq!(kept.pod, of_labels.filter(|_| speaks == Speaks::Cri));
    }
}
