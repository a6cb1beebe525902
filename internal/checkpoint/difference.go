// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "github.com/drover-dev/drover/api/v1"
)

// maxNamed is the number of sets of each kind of change that a status names.
const maxNamed = 50

// Difference is what a restored hub would change in a member, by sorted IDs of sets.
type Difference struct {
	// Checkpoint is the checkpoint that the agent has or had, and that the hub does not remember.
	Checkpoint string
	// Add has the sets that the member lacks, Change those that it has with other content, and Remove those that no object
	// of the hub wants.
	Add, Change, Remove []string
}

func (d *Difference) empty() bool { return len(d.Add)+len(d.Change)+len(d.Remove) == 0 }

// digest returns the digest of all that would change, by names.
func (d *Difference) digest() string {
	hash := sha256.New()
	for _, ids := range [][]string{d.Add, d.Change, d.Remove} {
		fmt.Fprintf(hash, "%q\n", ids)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Status returns the difference as the status of a Cluster shows it, nil for nil.
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

// Summary returns the number of changes in words.
func Summary(add, change, remove []string) string {
	return fmt.Sprintf("%d to add, %d to change, %d to remove", len(add), len(change), len(remove))
}
