// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// History detects that the hub's etcd was restored from a backup. Use HistoryOf to create a History.
type History struct {
	// Checkpoint returns the checkpoint to send with instructions. Forgot reports whether the hub has no record of an
	// agent's checkpoint.
	Checkpoint func() string
	Forgot     func(checkpoint string) bool
	// Term returns this manager's leadership term, which the status shows.
	Term func() string
}

// HistoryOf returns the history that a Recorder keeps. If the Recorder is nil, restores are not detected.
func HistoryOf(r *checkpoint.Recorder) History {
	return History{Checkpoint: r.Current, Forgot: r.Forgot, Term: r.Term}
}

// give sends the agent a version of the instructions together with the current checkpoint. If the version is empty, the
// agent removes its instructions.
func (r *Reconciler) give(in *input, version string, content []byte) {
	in.call = r.Members.StartHostInstructions(in.member, members.HostInstructions{
		Version: version, Content: content, Checkpoint: r.Checkpoint(),
	})
}

// holdBack reports whether the host's state is newer than the state of the restored hub. If so, holdBack records the
// changes, unless they have been confirmed or cannot harm the host.
func (r *Reconciler) holdBack(ctx context.Context, in *input, unharmed bool) (behind bool, err error) {
	lost, confirmed := checkpoint.Lost(in.host, in.host.Status.Restore, in.report().Progress.Checkpoint, r.Forgot)
	if lost == "" || unharmed || confirmed {
		return lost != "", nil
	}
	return true, r.compare(ctx, in, lost)
}

// compare determines the changes that the restored hub would make to a host whose instructions differ from the hub's
// instructions.
func (r *Reconciler) compare(ctx context.Context, in *input, lost string) error {
	if in.version != "" {
		secret, err := owned.ReadSecret(ctx, r.Live, secretName(in.host)) // the cache contains no Secret data
		if err != nil {
			return err
		}
		if secret != nil {
			if instructions, err := protocol.ParseHostInstructions(secret.Data[v1.HostInstructionsKey]); err == nil {
				in.owner = &instructions.Owner
			}
		}
	}
	in.held = heldBack(in, lost)
	return nil
}

// heldBack returns the changes that are waiting for confirmation. It has no side effects. If the instructions on the
// host have another owner, or if the host does not report their owner, the changes include cleaning the host.
func heldBack(in *input, lost string) *v1.RestoreStatus {
	name, progress := []string{secretName(in.host).Name}, in.report().Progress
	held, has := &v1.RestoreStatus{Checkpoint: lost}, progress.Version
	switch {
	case in.version == "":
		held.Remove = name
	case has == "":
		held.Add = name
	case progress.Owner == nil || in.owner == nil || *progress.Owner != *in.owner:
		held.Change, held.Remove = name, name
	default:
		held.Change = name
	}
	held.Summary = checkpoint.Summary(held.Add, held.Change, held.Remove)
	digest := sha256.Sum256(fmt.Appendf(nil, "%q %q", has, in.version))
	held.Digest = hex.EncodeToString(digest[:])
	return held
}

// writeHeld writes the changes that are waiting for confirmation to the status. It leaves the status unchanged while it
// is unknown whether any changes are waiting.
func writeHeld(in *input, update *status.Update) {
	if in.err != nil || in.report() == nil && in.identity != nil {
		return
	}
	shown := &in.host.Status
	checkpoint.Status{Restore: &shown.Restore, Conditions: &shown.Conditions, Generation: in.host.Generation}.
		Write(in.held, "HandOver", whyHeld(in), update)
}

// whyHeld describes the changes that are waiting for confirmation, and explains what to do about them.
func whyHeld(in *input) string {
	if in.held == nil {
		return ""
	}
	would := "given older instructions"
	switch {
	case len(in.held.Remove) > 0 && len(in.held.Change) > 0:
		would = "cleaned, then given " + instructionsOf(in.owner)
	case len(in.held.Remove) > 0:
		would = "cleaned"
	case len(in.held.Add) > 0:
		would = "given instructions that were taken away"
	}
	return fmt.Sprintf("The hub's etcd was restored from a backup that is older than what the host has. It would be %s; that waits until an administrator "+
		"confirms it. Correct Secret %s if it is not what you want, then run \"kubectl drover restored host/%s -w %s\"", would, secretName(in.host).Name, in.host.Name, in.host.Namespace)
}

// instructionsOf describes instructions by their owner. owner is nil if the owner is unknown.
func instructionsOf(owner *string) string {
	switch {
	case owner == nil:
		return "instructions whose owner is not known"
	case *owner == "":
		return "instructions that Drover did not make"
	}
	return "instructions of " + *owner
}
