// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// startLimit is how long a plane may take to start, even on a busy machine. On an idle machine, it takes about 4 s.
const startLimit = 3 * time.Minute

// ControlPlane is a running Kubernetes API server with its database. It is reachable only on 127.0.0.1. All methods
// may be called concurrently.
type ControlPlane struct {
	options Options
	pki     authorities
	ports   ports
	admin   []byte
	rest    *rest.Config
	// cleanup removes a temporary Dir.
	cleanup func() error

	running running
}

// ports are the plane's ports. They are leased while the plane is attached, so that a program finds its port free
// when it is restarted.
type ports struct{ api, etcd *portLease }

// running contains the processes by program name, and the order in which they were started.
type running struct {
	mu        sync.Mutex // guards the following fields
	processes map[string]*Process
	stopped   bool
}

// Start starts a control plane. It returns when /readyz reports ok and, if there is a controller manager, the
// ServiceAccount default/default exists. ctx limits only the start.
//
// If Start fails, no process is left running, and the error contains the last lines of the log of the program that
// failed. The caller must call Stop. If the caller of an attached plane dies before that, the kernel ends the
// programs (on Linux), but the temporary folder remains.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not within %s", startLimit))
	defer cancel()
	options, cleanup, err := options.complete()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), cleanup())
	}
	p := &ControlPlane{options: options, cleanup: cleanup}
	p.running.processes = map[string]*Process{}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane %s: %w", options.Name, err), p.Stop())
	}
	return p, nil
}

func (p *ControlPlane) start(ctx context.Context) error {
	if err := p.refuseIfRunning(); err != nil {
		return err
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	for _, program := range p.options.programs() {
		if err := p.startProgram(ctx, program); err != nil {
			return err
		}
	}
	return nil
}

// refuseIfRunning returns an error if a plane is already running in the folder. Two planes would share the data and,
// through SO_REUSEPORT, the ports.
func (p *ControlPlane) refuseIfRunning() error {
	names, err := Running(p.options.PIDDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, p.options.Name+"-") {
			return fmt.Errorf("%s: %w: stop it first (see %s)", name, ErrRunning, p.options.PIDDir)
		}
	}
	return nil
}

// prepare finds the binaries, and creates the keys, the ports and the administrator's credentials.
func (p *ControlPlane) prepare(ctx context.Context) error {
	err := p.findAssets(ctx)
	if err != nil {
		return err
	}
	if p.pki, err = openPKI(filepath.Join(p.options.Dir, "pki"), p.options.Nodes); err != nil {
		return err
	}
	if err := p.leasePorts(); err != nil {
		return err
	}
	credential, err := p.pki.cluster.credential(identity{user: "lab-admin", groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	if p.admin, err = p.kubeconfig("admin", credential); err != nil {
		return err
	}
	p.rest, err = restConfig(p.admin)
	return err
}

func (p *ControlPlane) findAssets(ctx context.Context) error {
	for _, program := range p.options.programs() {
		if p.options.Assets[program] == "" {
			found, err := Binaries(ctx, p.options.Progress, p.options.programs()...)
			p.options.Assets = found
			return err
		}
	}
	return nil
}

// leasePorts leases the ports that the plane used before, if possible, so that its kubeconfigs remain valid.
func (p *ControlPlane) leasePorts() error {
	path := filepath.Join(p.options.Dir, "ports.json")
	var kept struct{ API, Etcd int }
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read ports: %w", err)
	}
	if p.ports.api, err = leasePort(kept.API); err != nil {
		return err
	}
	if p.ports.etcd, err = leasePort(kept.Etcd); err != nil {
		return err
	}
	kept.API, kept.Etcd = p.ports.api.port, p.ports.etcd.port
	if content, err = json.Marshal(kept); err != nil {
		return fmt.Errorf("write ports: %w", err)
	}
	return writeFileAtomic(path, content, 0o644)
}

func (p *ControlPlane) startProgram(ctx context.Context, program string) error {
	command, err := p.command(program)
	if err != nil {
		return err
	}
	process, err := p.launch(command, program)
	if err != nil {
		return err
	}
	check, done, err := p.readiness(program)
	if err != nil {
		return err
	}
	defer done()
	return process.WaitReady(ctx, check)
}

// launch starts a process and records it, unless the plane has been stopped in the meantime.
func (p *ControlPlane) launch(command Command, program string) (*Process, error) {
	process, err := command.Start()
	if err != nil {
		return nil, err
	}
	p.running.mu.Lock()
	stopped := p.running.stopped
	if !stopped {
		p.running.processes[program] = process
	}
	p.running.mu.Unlock()
	if stopped { // the process has created the folder again for its log
		return nil, errors.Join(fmt.Errorf("start %s: the plane was stopped", command.Name), process.Kill(), p.cleanup())
	}
	return process, nil
}

// Name returns Options.Name.
func (p *ControlPlane) Name() string { return p.options.Name }

// Dir returns the folder of the plane's state.
func (p *ControlPlane) Dir() string { return p.options.Dir }

// PIDDir returns the folder to pass to StopDetached.
func (p *ControlPlane) PIDDir() string { return p.options.PIDDir }

// URL returns the address of the API server, on 127.0.0.1.
func (p *ControlPlane) URL() string { return loopbackURL(p.ports.api.port) }

// CA returns the certificate authority of the API server, as PEM.
func (p *ControlPlane) CA() []byte { return append([]byte(nil), p.pki.cluster.certPEM...) }

// Process returns the process of a program (Etcd, APIServer, ControllerManager), for example to pause, kill or
// measure it. It returns nil if the plane does not run the program or has been stopped.
func (p *ControlPlane) Process(program string) *Process {
	p.running.mu.Lock()
	defer p.running.mu.Unlock()
	if p.running.stopped {
		return nil
	}
	return p.running.processes[program]
}

// Restart stops a program of the plane if it is running, and starts it again on the same port with the same data. It
// returns when the program is ready.
func (p *ControlPlane) Restart(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not within %s", startLimit))
	defer cancel()
	process := p.Process(program)
	if process == nil {
		return fmt.Errorf("restart %s of %s: the plane does not run it", program, p.options.Name)
	}
	if err := process.Stop(ctx); err != nil && !errors.Is(err, ErrForced) {
		return fmt.Errorf("restart %s of %s: %w", program, p.options.Name, err)
	}
	if err := p.startProgram(ctx, program); err != nil {
		return fmt.Errorf("restart %s of %s: %w", program, p.options.Name, err)
	}
	return nil
}

// Stop ends all programs, in the reverse order of their start, and returns when they have ended. It removes a
// temporary Dir, but keeps a Dir that the caller has set. Calling Stop again has no effect.
func (p *ControlPlane) Stop() error {
	p.running.mu.Lock()
	again := p.running.stopped
	p.running.stopped = true
	processes := p.running.processes
	p.running.mu.Unlock()
	if again {
		return nil
	}
	var errs []error
	programs := p.options.programs()
	for i := len(programs) - 1; i >= 0; i-- {
		process := processes[programs[i]]
		if process == nil {
			continue
		}
		// An API server with open watches rarely ends in time, so killing it is not an error.
		if err := process.Stop(context.Background()); !errors.Is(err, ErrForced) {
			errs = append(errs, err)
		}
	}
	for _, lease := range []*portLease{p.ports.api, p.ports.etcd} {
		if lease != nil {
			lease.release()
		}
	}
	return errors.Join(append(errs, p.cleanup())...)
}
