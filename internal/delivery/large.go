// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
)

// Bounds on what the sets of a workspace take in memory. Large sets have copies of Secrets, which any number of plans may name.
const (
	largeSet = 64 << 10  // bytes from which on a set counts
	maxLarge = 128 << 20 // bytes of the large sets of a workspace
)

// excessDigest is the digest of a set that is not kept because its workspace has too many large ones.
const excessDigest = "*excess"

func excess(s *set.Set) bool { return s != nil && s.Digest == excessDigest }

// boundLocked returns the sets of an owner, without content where the workspace would have too much of it: the member keeps what it has.
func (d *Store) boundLocked(key Key, sets map[types.NamespacedName]*set.Set) map[types.NamespacedName]*set.Set {
	room, seen := maxLarge, map[string]bool{}
	for _, s := range sets {
		if n := size(s); n > largeSet && !seen[s.Digest] {
			seen[s.Digest] = true
			room -= n
		}
	}
	if len(seen) == 0 {
		return sets
	}
	for other, o := range d.owners {
		if other.Namespace == key.Namespace && other != key {
			room -= o.large()
		}
	}
	if room >= 0 {
		return sets
	}
	bounded := make(map[types.NamespacedName]*set.Set, len(sets))
	for name, s := range sets {
		if size(s) > largeSet {
			s = &set.Set{ID: s.ID, Digest: excessDigest}
		}
		bounded[name] = s
	}
	return bounded
}

// large returns the bytes of an owner's large sets.
func (o *owner) large() (bytes int) {
	for _, c := range o.sets {
		if n := size(c.set); n > largeSet {
			bytes += n
		}
	}
	return bytes
}

// excessiveLocked returns the owners in a workspace with sets that are not kept.
func (d *Store) excessiveLocked(workspace string) (keys []Key) {
	for key, o := range d.owners {
		if _, is := o.sets[excessDigest]; is && key.Namespace == workspace {
			keys = append(keys, key)
		}
	}
	return keys
}

// excessOutcome is the outcome of a set that is not kept.
func excessOutcome(workspace string) Outcome {
	return Outcome{Stage: Failed, Reason: v1.ReasonDeliveryFailed, Failures: []v1.Failure{{Object: wholeSet, Message: fmt.Sprintf(
		"The hub does not deliver it: what workspace %s delivers in pieces of more than %d KiB has more than %d MiB; name fewer or smaller Secrets in its plans and projects",
		workspace, largeSet>>10, maxLarge>>20)}}}
}
