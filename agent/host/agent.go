// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host implements the agent that runs directly on a machine.
//
// The agent joins the hub as a Host and keeps a tunnel to the hub open. It accepts instructions and reports their
// progress.
package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/host/instructions"
	"github.com/drover-dev/drover/agent/identity"
	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

const (
	// inspectEvery is the interval at which the machine is inspected, and reportEvery is the shortest time between two
	// reports.
	inspectEvery = 5 * time.Minute
	reportEvery  = 200 * time.Millisecond
	// drainTimeout is how long the hub may use the tunnels after the agent has been asked to stop. It is short
	// because Hosts have no user sessions.
	drainTimeout = 2 * time.Second
	// linger is how long an agent waits before it exits after an uninstall request, so that its response can reach the
	// hub.
	linger = time.Second
)

// Options configure Run.
type Options struct {
	// ConfigDir is the directory with the configuration.
	ConfigDir string
	// Root is a prefix for the paths of files. It is empty on a real machine.
	Root string
	// Supervisor returns a command that supervises an instruction. See instructions.Options.
	Supervisor func(entry string) *exec.Cmd
	Version    string
	Log        logr.Logger
}

// agent holds the interdependent parts of the agent.
type agent struct {
	options Options
	config  Config
	secrets *secrets
	keeper  *identity.Keeper
	runner  *instructions.Runner
	stream  *stream.Stream
	uid     string        // identifies this installation, like the UID of the kube-system namespace in a cluster
	changed chan struct{} // has room for one element; signals that there is something to report
	left    chan struct{} // closed when the agent has removed itself
	leave   sync.Once
}

// Run runs the agent until ctx is done or the hub has removed the agent, and then returns nil.
func Run(ctx context.Context, o Options) error {
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := link.New(link.Options{
		Target: a.keeper.Target, Changed: a.keeper.Changed, Handler: a.handler(), Drain: drainTimeout, Log: o.Log.WithName("link"),
	})
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { a.report(ctx) })
	running.Go(func() { a.runner.Run(ctx) })
	running.Go(func() { l.Run(ctx) })
	select {
	case <-ctx.Done():
	case <-a.left:
		o.Log.Info("the hub has removed this host; the agent ends")
	}
	cancel()
	return nil
}

func newAgent(o Options) (*agent, error) {
	config, err := readConfig(o.ConfigDir)
	if err != nil {
		return nil, err
	}
	a := &agent{options: o, config: config, secrets: &secrets{folder: o.ConfigDir}, stream: stream.New(), changed: make(chan struct{}, 1), left: make(chan struct{})}
	if a.uid, err = installation(o.ConfigDir); err != nil {
		return nil, err
	}
	a.keeper = identity.New(identity.Options{
		Secrets: a.secrets, Namespace: o.ConfigDir, ClusterUID: a.uid,
		Manifest: identity.Manifest{Mode: config.Trust, Servers: config.Servers, Checksums: config.Checksums},
		Tunnel:   tunnel.Config{DrainTimeout: linger, HandshakeTimeout: protocol.AttemptTime, Memory: &tunnel.Memory{}},
		Log:      o.Log.WithName("identity"),
	})
	a.runner, err = instructions.New(instructions.Options{
		State: filepath.Join(filepath.Dir(o.ConfigDir), folderState), Root: o.Root, Supervisor: o.Supervisor, Changed: a.touch, Log: o.Log.WithName("instructions"),
	})
	return a, err
}

// installation returns a name for this installation of the agent. Copies of a machine image get different names if the
// image was created before the agent ran for the first time.
func installation(dir string) (string, error) {
	path := filepath.Join(dir, "installation")
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	uid := strings.ToLower(rand.Text())
	return uid, instructions.WriteDurably(path, []byte(uid+"\n"))
}

// touch requests a new report.
func (a *agent) touch() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// report publishes a report whenever the progress or the machine changes, until ctx is done.
func (a *agent) report(ctx context.Context) {
	topic := a.stream.Topic(protocol.SubjectReport)
	machine, look := inspect(a.config), time.NewTicker(inspectEvery)
	defer look.Stop()
	for {
		topic.Put("", &protocol.Line{Report: &protocol.Report{
			Protocol: protocol.Version, MinProtocol: protocol.MinVersion, AgentVersion: a.options.Version, ClusterUID: a.uid,
			SettingsDigest: a.keeper.Digest(), Leader: true, // a host has only one agent
			Host: &protocol.HostReport{Machine: machine, Progress: a.runner.Progress()},
		}})
		topic.Sync()
		if !await.Time(ctx, reportEvery) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		case <-look.C:
			machine = inspect(a.config)
		}
	}
}

func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(protocol.PathReport, a.stream)
	mux.Handle(protocol.PathSettings, a.keeper.Settings(a.touch))
	mux.HandleFunc("GET "+protocol.PathTerm, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(protocol.Term{Term: a.keeper.Instance()}) // the hub notices an incomplete response
	})
	mux.HandleFunc("PUT "+protocol.PathHostInstructions, a.serveInstructions)
	mux.HandleFunc("DELETE "+protocol.PathHostInstructions, a.serveClean)
	mux.HandleFunc("POST "+protocol.PathUninstall, a.serveUninstall)
	return mux
}

func (a *agent) serveInstructions(w http.ResponseWriter, r *http.Request) {
	version := r.URL.Query().Get(protocol.QueryVersion)
	if version == "" {
		http.Error(w, "instructions must have a version", http.StatusBadRequest)
		return
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, protocol.MaxHostInstructions))
	if err != nil {
		http.Error(w, "read instructions: "+err.Error(), http.StatusBadRequest)
		return
	}
	instructions, err := protocol.ParseHostInstructions(raw)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	a.options.Log.Info("received instructions", "version", version, "count", len(instructions.Instructions))
	a.answer(w, a.runner.Set(r.URL.Query().Get(protocol.QueryCheckpoint), version, instructions))
}

func (a *agent) serveClean(w http.ResponseWriter, r *http.Request) {
	a.options.Log.Info("the hub has taken the instructions away")
	a.answer(w, a.runner.Set(r.URL.Query().Get(protocol.QueryCheckpoint), "", nil))
}

func (a *agent) answer(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, instructions.ErrCleaning):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		a.options.Log.Error(err, "instructions could not be stored")
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// serveUninstall removes the agent's identity and configuration once the host is clean, and then stops the agent.
func (a *agent) serveUninstall(w http.ResponseWriter, _ *http.Request) {
	if a.runner.Progress().Version != "" {
		http.Error(w, "the host has instructions: take them away first", http.StatusConflict)
		return
	}
	a.keeper.Leave()
	var result protocol.UninstallResult
	err := errors.Join(a.secrets.remove(protocol.IdentitySecret, protocol.RegistrationSecret), os.Remove(filepath.Join(a.options.ConfigDir, fileConfig)))
	if err != nil {
		result.Remaining = []string{fmt.Sprintf("configuration of the agent: %v", err)}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result)
	a.leave.Do(func() { time.AfterFunc(linger, func() { close(a.left) }) })
}
