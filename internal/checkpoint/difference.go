// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "github.com/drover-dev/drover/api/v1"
)

// maxNamed is the maximum number of sets that a status lists for each kind of change.
const maxNamed = 50

// Difference lists the changes that a restored hub would make in a member. The sets are listed by ID, in sorted order.
type Difference struct {
	// Checkpoint is the checkpoint that the agent last reported, and that the hub has no record of.
	Checkpoint string
	// Add lists the sets that the member lacks, Change lists the sets whose content differs, and Remove lists the sets
	// that no object on the hub requires.
	Add, Change, Remove []string
}

func (d *Difference) empty() bool { return len(d.Add)+len(d.Change)+len(d.Remove) == 0 }

// digest returns a digest of all IDs in d.
func (d *Difference) digest() string {
	hash := sha256.New()
	for _, ids := range [][]string{d.Add, d.Change, d.Remove} {
		fmt.Fprintf(hash, "%q\n", ids)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Status returns the difference in the form used in a Cluster's status. It returns nil for a nil difference.
func (d *Difference) Status() *v1.RestoreStatus {
	if d == nil {
		return nil
	}
	first := func(ids []string) []string { return ids[:min(len(ids), maxNamed)] }
	return &v1.RestoreStatus{
		Checkpoint: d.Checkpoint, Digest: d.digest(), Summary: Summary(d.Add, d.Change, d.Remove),
		Add: first(d.Add), Change: first(d.Change), Remove: first(d.Remove),
	}
}

// Summary returns text that contains the number of changes of each kind.
func Summary(add, change, remove []string) string {
	return fmt.Sprintf("%d to add, %d to change, %d to remove", len(add), len(change), len(remove))
}
