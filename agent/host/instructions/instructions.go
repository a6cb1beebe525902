// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"fmt"
	"sync"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// all ensures that all one-time instructions have run, and reports whether they succeeded.
func (r *Runner) all(ctx context.Context, o *order, instructions []protocol.HostInstruction) bool {
	for _, instruction := range instructions {
		if ctx.Err() != nil || r.current() != o || !r.once(ctx, o, instruction) {
			return false
		}
		r.update(o, func(p *protocol.HostProgress) { p.Done++; p.Instruction = "" })
	}
	return true
}

func (r *Runner) fail(o *order, phase protocol.HostPhase, id, message, output string) {
	message = report(message, secretsOf(o.HostInstructions))
	r.options.Log.Info("an instruction failed", "phase", phase, "instruction", id, "message", message)
	r.update(o, func(p *protocol.HostProgress) {
		p.Phase, p.Instruction, p.Message, p.Output = phase, id, message, output
	})
}

// once ensures that an instruction has run, and reports whether it succeeded.
func (r *Runner) once(ctx context.Context, o *order, instruction protocol.HostInstruction) bool {
	r.update(o, func(p *protocol.HostProgress) { p.Instruction = instruction.ID })
	why, failed := "see the log of the agent on the machine", error(nil)
	for starts := 0; ctx.Err() == nil; {
		state, result, digest, err := r.journal.look(instruction.ID)
		switch {
		case err != nil:
			r.fail(o, protocol.HostFailed, instruction.ID, err.Error(), "")
			return false
		case state != unknown && digest != "" && digest != instruction.Digest():
			r.fail(o, protocol.HostFailed, instruction.ID,
				"an instruction with this ID and another content has already run on this host: give this one another ID", "")
			return false
		case state == ended:
			return r.finish(o, instruction, result)
		case state == interrupted:
			r.settle(instruction)
			message := "the instruction was interrupted and is not repeated: inspect the machine, then give the instruction a new ID if it must run again"
			if failed != nil {
				message += ": its supervisor: " + failed.Error()
			}
			r.fail(o, protocol.HostInterrupted, instruction.ID, message, "")
			return false
		case state == running:
			await.Time(ctx, lockPoll)
		case starts >= maxStarts:
			r.fail(o, protocol.HostFailed, instruction.ID, "the instruction could not begin: "+why, "")
			return false
		default:
			if starts++; starts > 1 && !await.Time(ctx, lockPoll) {
				return false
			}
			if err := r.start(ctx, instruction); err != nil {
				r.options.Log.Error(err, "supervisor", "instruction", instruction.ID)
				why, failed = err.Error(), err
			}
		}
	}
	return false
}

// start runs a supervisor until the supervisor exits or ctx is done.
func (r *Runner) start(ctx context.Context, instruction protocol.HostInstruction) error {
	if err := r.journal.prepare(instruction); err != nil {
		return err
	}
	r.options.step("prepared")
	supervisor := r.options.Supervisor(r.journal.entry(instruction.ID))
	detach(supervisor)
	if err := supervisor.Start(); err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	r.options.step("supervisor started")
	ended := make(chan error, 1)
	go func() { ended <- supervisor.Wait() }()
	select {
	case <-ctx.Done():
		return nil // the supervisor continues and will write the result
	case err := <-ended:
		r.options.step("supervisor ended")
		return err
	}
}

// settle removes an instruction's command and variables if the instruction is not running.
func (r *Runner) settle(instruction protocol.HostInstruction) {
	if err := r.journal.settle(instruction.ID); err != nil {
		r.options.Log.Error(err, "the command of an instruction that has ended is still in the journal", "instruction",
			instruction.ID)
	}
}

func (r *Runner) finish(o *order, instruction protocol.HostInstruction, result Result) bool {
	r.settle(instruction)
	r.options.step("settled")
	if result.ExitCode == 0 && result.Error == "" {
		return true
	}
	message := result.Error
	if message == "" {
		message = fmt.Sprintf("the instruction ended with exit code %d", result.ExitCode)
	}
	r.fail(o, protocol.HostFailed, instruction.ID, message, report(result.Output, secretsOf(o.HostInstructions)))
	return false
}

// keep runs the periodic instructions and the probes until ctx is done.
func (r *Runner) keep(ctx context.Context, o *order, running *sync.WaitGroup) {
	for _, instruction := range o.Periodic {
		running.Go(func() { r.repeat(ctx, o, instruction) })
	}
	for _, probe := range o.Probes {
		running.Go(func() {
			watchProbe(ctx, r.options.Root, probe, func(successful bool) { r.noteProbe(o, probe.Name, successful) })
		})
	}
}

// noteProbe records the result of a probe.
func (r *Runner) noteProbe(o *order, name string, successful bool) {
	r.update(o, func(*protocol.HostProgress) {
		if delete(r.failing, name); !successful {
			r.failing[name] = true
		}
	})
}

// repeat runs a periodic instruction repeatedly. The time of the last run is not stored, so the instruction runs
// immediately after the agent has been restarted.
func (r *Runner) repeat(ctx context.Context, o *order, instruction protocol.HostInstruction) {
	for {
		result := execute(ctx, instruction)
		if ctx.Err() != nil {
			return
		}
		why := result.Error
		if why == "" && result.ExitCode != 0 {
			why = fmt.Sprintf("exit code %d", result.ExitCode)
		}
		r.update(o, func(*protocol.HostProgress) {
			if delete(r.periodic, instruction.ID); why != "" {
				r.periodic[instruction.ID] = report(why, secretsOf(o.HostInstructions))
			}
		})
		if !await.Time(ctx, instruction.Period()) {
			return
		}
	}
}
