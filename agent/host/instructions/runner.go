// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instructions carries out a host's instructions: files, one-time and periodic instructions, and probes.
//
// A journal ensures that a one-time instruction never runs again after a crash. The journal has a directory for each
// instruction.
//
// Each instruction has its own supervisor, which is a separate process. The supervisor creates the file "begun"
// exclusively before the command starts, and "result.json" after the command has exited. The agent only reads these
// files. The exclusive creation ensures that a command starts only once. If the agent is killed, the next agent can
// read the result.
package instructions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	fileStored     = "plan.json"  // this name is older than the Plan kind; other agent versions read this file
	fileCheckpoint = "checkpoint" // the hub's latest checkpoint; kept when the instructions are removed
	folderJournal  = "journal"

	// fileRetry is the interval between attempts to write files.
	fileRetry = 30 * time.Second
	// lockPoll is how often to check an instruction that another process supervises.
	lockPoll = 200 * time.Millisecond
	// maxStarts is the maximum number of supervisors that are started for an instruction that fails to start.
	maxStarts = 20
)

// ErrCleaning is returned while a host accepts no instructions because it is still being cleaned up after the previous
// instructions.
var ErrCleaning = errors.New("the host is being cleaned; try again when it is")

// Options configure a Runner.
type Options struct {
	// State is the directory with the instructions and the journal. Only root can read this directory.
	State string
	// Root is a prefix for the paths of files. It is empty on a real machine.
	Root string
	// Supervisor returns a command that calls Supervise with the given directory.
	Supervisor func(entry string) *exec.Cmd
	// Changed is called whenever the result of Progress changes. It must not block.
	Changed func()
	Log     logr.Logger

	step  func(name string) // called between steps; tests use it to terminate the process
	retry time.Duration     // overrides fileRetry
}

// Runner carries out the instructions of a host.
type Runner struct {
	options Options
	journal journal
	wake    chan struct{} // has room for one element; signals that the instructions have changed

	// setting is held while instructions are stored and replaced, so that the Runner carries out only instructions that
	// have been stored.
	setting sync.Mutex

	mu       sync.Mutex // guards the fields below
	order    *order     // nil if there are no instructions
	progress protocol.HostProgress
	reached  string            // the hub's checkpoint
	failing  map[string]bool   // probes that do not succeed
	periodic map[string]string // why periodic instructions fail, by ID
}

// order is the storage format of instructions. Other versions of the agent must be able to read it.
type order struct {
	// Version is the version that the hub assigned to the instructions.
	Version string `json:"version"`
	// Taken is true if the instructions were removed and only the cleanup remains.
	Taken bool `json:"taken,omitempty"`
	// Cleaned is true if everything except the journal and this file has been cleaned.
	Cleaned bool `json:"cleaned,omitempty"`

	*protocol.HostInstructions `json:"plan"`
}

// next returns the one-time instructions that must run.
func (o *order) next() []protocol.HostInstruction {
	if o.Taken {
		return o.Clean
	}
	return o.Instructions
}

// New returns a Runner that continues with any instructions in the state directory.
func New(o Options) (*Runner, error) {
	if o.step == nil {
		o.step = func(string) {}
	}
	r := &Runner{options: o, journal: journal{filepath.Join(o.State, folderJournal)}, wake: make(chan struct{}, 1)}
	if err := makeFolder(r.journal.folder); err != nil {
		return nil, fmt.Errorf("instructions of the host: %w", err)
	}
	if err := r.readCheckpoint(); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(r.stored())
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return nil, fmt.Errorf("instructions of the host: %w", err)
	}
	found := &order{}
	if err := json.Unmarshal(raw, found); err != nil || found.HostInstructions == nil {
		// The error is not wrapped, because it may quote the instructions.
		return nil, fmt.Errorf("instructions of the host: %s cannot be read: look at the machine, then remove the file", r.stored())
	}
	r.take(found)
	return r, nil
}

func (r *Runner) stored() string { return filepath.Join(r.options.State, fileStored) }

// Set stores instructions durably, and replaces the previous instructions. It does not end a running instruction. If
// instructions is nil, Set removes the current instructions: their Clean instructions run, their files are removed, and
// the journal is emptied. If the new instructions come from another owner, Set also removes the current instructions.
// Until the machine is clean, it returns ErrCleaning and does not store the new instructions. Set stores the checkpoint
// before the instructions. The checkpoint is empty if the hub has sent none.
func (r *Runner) Set(checkpoint, version string, instructions *protocol.HostInstructions) error {
	r.setting.Lock()
	defer r.setting.Unlock()
	before := r.current()
	if instructions != nil && before != nil && before.Taken {
		return ErrCleaning
	}
	if err := r.reach(checkpoint); err != nil {
		return err
	}
	next := &order{Version: version, HostInstructions: instructions}
	clean := before != nil && (instructions == nil || before.Owner != instructions.Owner)
	switch {
	case instructions == nil && (before == nil || before.Taken):
		return nil
	case clean:
		next = &order{Version: before.Version, HostInstructions: before.HostInstructions, Taken: true}
	case before != nil && before.Version == version:
		return nil
	}
	if err := r.store(next); err != nil {
		return err
	}
	r.take(next)
	r.stopStarts(next)
	if clean && instructions != nil {
		return ErrCleaning
	}
	return nil
}

// stopStarts ends running instructions that start a service if the next instructions begin by stopping it.
func (r *Runner) stopStarts(o *order) {
	if o == nil || o.Taken {
		return
	}
	if err := r.journal.stopStarts(o.Instructions); err != nil {
		r.options.Log.Error(err, "an instruction that starts a service that must be stopped could not be ended")
	}
}

func (r *Runner) store(o *order) error {
	raw, err := json.Marshal(o)
	if err == nil {
		err = WriteDurably(r.stored(), raw)
	}
	if err != nil {
		return fmt.Errorf("instructions of the host: %w", err)
	}
	r.options.step("instructions stored")
	return nil
}

func (r *Runner) take(o *order) {
	r.mu.Lock()
	r.order, r.failing, r.periodic, r.progress = o, map[string]bool{}, map[string]string{}, protocol.HostProgress{}
	if o != nil {
		r.progress.Version, r.progress.Owner = o.Version, &o.Owner
		r.progress.Phase, r.progress.Total = protocol.HostApplying, int32(len(o.Instructions))
		for _, probe := range o.Probes {
			r.failing[probe.Name] = true
		}
	}
	if o != nil && o.Taken {
		r.failing, r.progress.Phase, r.progress.Total = nil, protocol.HostCleaning, int32(len(o.Clean))
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	r.changed()
}

// Progress returns the progress of the instructions, or an empty result if there are none.
func (r *Runner) Progress() protocol.HostProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.progress
	p.Checkpoint = r.reached
	for name := range r.failing {
		p.Failing = append(p.Failing, name)
	}
	slices.Sort(p.Failing)
	if p.Phase == protocol.HostApplied && len(r.periodic) > 0 {
		ids := make([]string, 0, len(r.periodic))
		for id := range r.periodic {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		p.Message = fmt.Sprintf("periodic instruction %s: %s", ids[0], r.periodic[ids[0]])
	}
	p.Bound()
	return p
}

func (r *Runner) changed() {
	if r.options.Changed != nil {
		r.options.Changed()
	}
}

// update changes the progress of instructions, unless they have been replaced.
func (r *Runner) update(o *order, change func(*protocol.HostProgress)) {
	r.mu.Lock()
	current := r.order == o
	if current {
		change(&r.progress)
	}
	r.mu.Unlock()
	if current {
		r.changed()
	}
}

func (r *Runner) current() *order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.order
}

// Run carries out instructions until ctx is done. Any instruction that is still running then continues, and the next
// Runner finds its result.
func (r *Runner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		o := r.current()
		r.follow(ctx, o)
	}
}

// follow carries out instructions until they are replaced or ctx is done.
func (r *Runner) follow(ctx context.Context, o *order) {
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	r.stopStarts(o)
	for o != nil && r.journal.busy(o.next()) { // an instruction that an earlier agent started is still running
		if !r.await(ctx, o, lockPoll) {
			return
		}
	}
	if o != nil {
		if err := r.journal.prune(o.Instructions); err != nil {
			r.options.Log.Error(err, "the journal still has instructions that it could forget")
		}
	}
	carryOut := r.apply
	if o != nil && o.Taken {
		carryOut = r.clean
	}
	for o != nil && !carryOut(ctx, o) { // files could not be written or removed, or an instruction could not start
		if !r.await(ctx, o, cmp.Or(r.options.retry, fileRetry)) {
			return
		}
	}
	if o != nil && r.Progress().Phase == protocol.HostApplied {
		r.keep(ctx, o, &running)
	}
	for r.current() == o && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.wake:
		}
	}
}

// await waits for the given time. It returns false if the instructions are replaced or ctx is done first.
func (r *Runner) await(ctx context.Context, o *order, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for r.current() == o {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return errors.Is(ctx.Err(), context.DeadlineExceeded)
		}
	}
	return false
}

// apply writes the files and runs the one-time instructions that have not run yet. It returns false if it must be
// called again.
func (r *Runner) apply(ctx context.Context, o *order) bool {
	for _, file := range o.Files {
		if err := writeFile(r.options.Root, file); err != nil {
			r.fail(o, protocol.HostFailed, "", err.Error(), "")
			return false
		}
		r.options.step("file written")
	}
	r.update(o, func(p *protocol.HostProgress) { p.Phase, p.Message, p.Done = protocol.HostApplying, "", 0 })
	if r.all(ctx, o, o.Instructions) {
		r.update(o, func(p *protocol.HostProgress) { p.Phase = protocol.HostApplied })
		return true
	}
	return !r.waits()
}

// waits reports whether an instruction could not start, for example because the disk is full. Such an instruction
// may start later.
func (r *Runner) waits() bool {
	p := r.Progress()
	if p.Phase != protocol.HostFailed || p.Instruction == "" {
		return false
	}
	state, _, _, err := r.journal.look(p.Instruction)
	return err == nil && state == unknown
}

// clean runs the Clean instructions, and then removes all instructions and the journal. It returns false if it must be
// called again.
func (r *Runner) clean(ctx context.Context, o *order) bool {
	r.update(o, func(p *protocol.HostProgress) { p.Phase, p.Message, p.Done = protocol.HostCleaning, "", 0 })
	if !o.Cleaned && !r.all(ctx, o, o.Clean) {
		return !r.waits()
	}
	for _, file := range o.Files {
		if err := writeFile(r.options.Root, protocol.HostFile{Path: file.Path, Absent: true}); err != nil {
			r.fail(o, protocol.HostFailed, "", err.Error(), "")
			return false
		}
	}
	r.options.step("files removed")
	if err := r.forget(*o); err != nil {
		r.fail(o, protocol.HostFailed, "", err.Error(), "")
		return false
	}
	r.take(nil)
	return true
}

// forget removes the journal and then the instructions, so that the same instructions can be carried out again. It
// first records that the cleanup has finished. Otherwise, if the agent were killed between the two removals, the next
// agent would find no journal and clean the machine again.
func (r *Runner) forget(o order) error {
	o.Cleaned = true
	if err := r.store(&o); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.journal.folder), makeFolder(r.journal.folder)); err != nil {
		return err
	}
	r.options.step("journal removed")
	return errors.Join(os.Remove(r.stored()), syncFolder(r.options.State))
}
