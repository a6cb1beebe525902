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

// startLimit is how long a plane may take, on a busy machine too; an idle one needs about 4 s.
const startLimit = 3 * time.Minute

// A ControlPlane is a running Kubernetes API with its database, reachable on 127.0.0.1. All methods may be called
// concurrently.
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

// ports are leased as long as the plane is attached, so that a restarted program finds its port free.
type ports struct{ api, etcd *portLease }

// running are the processes by program, in the order of their start.
type running struct {
	mu        sync.Mutex // protects the following
	processes map[string]*Process
	stopped   bool
}

// Start starts a control plane and returns when it serves: /readyz says ok and, with a controller manager, the
// ServiceAccount default/default exists. ctx bounds the start only. After an error nothing is left running, and the
// error holds the last lines of the log of the program that is to blame. The caller must Stop the plane; if an attached
// caller dies before, the kernel ends the programs (on Linux), and the temporary folder stays.
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

// refuseIfRunning keeps a second plane out of a folder: both would share the data and, by SO_REUSEPORT, the ports.
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

// prepare finds the binaries and makes keys, ports and the administrator's credentials.
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

// leasePorts prefers the ports that the plane had before, so that its kubeconfigs stay valid.
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

// startProgram runs one program and waits until it is ready.
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

// launch starts a process and notes it, unless the plane has been stopped meanwhile.
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
	if stopped { // its log has brought the folder back
		return nil, errors.Join(fmt.Errorf("start %s: the plane was stopped", command.Name), process.Kill(), p.cleanup())
	}
	return process, nil
}

// Name returns Options.Name.
func (p *ControlPlane) Name() string { return p.options.Name }

// Dir returns the folder of the plane's state.
func (p *ControlPlane) Dir() string { return p.options.Dir }

// PIDDir returns the argument for StopDetached.
func (p *ControlPlane) PIDDir() string { return p.options.PIDDir }

// URL returns the address of the API server, on 127.0.0.1.
func (p *ControlPlane) URL() string { return loopbackURL(p.ports.api.port) }

// CA returns the certificate authority of the API server, as PEM.
func (p *ControlPlane) CA() []byte { return append([]byte(nil), p.pki.cluster.certPEM...) }

// Process returns the process of a program (Etcd, APIServer, ControllerManager), to pause, kill or measure it; nil if
// the plane does not run it or was stopped.
func (p *ControlPlane) Process(program string) *Process {
	p.running.mu.Lock()
	defer p.running.mu.Unlock()
	if p.running.stopped {
		return nil
	}
	return p.running.processes[program]
}

// Restart stops a program of the plane, if it still runs, and starts it again on the same port with the same data. It
// returns when it serves.
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

// Stop ends all programs, the last started first, and returns when they are gone. It removes a temporary Dir, but keeps
// a Dir that the caller chose. Stopping again does nothing.
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
		// An API server with open watches rarely ends in time, so it is not an error that it was killed.
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
