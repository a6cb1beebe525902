// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// programLimit is how long the manager and the agent may take to become healthy. They usually need about a second.
const programLimit = time.Minute

// program is one of Drover's programs. It continues to run after the demo command has returned.
type program struct {
	name      string
	binary    string // name in .demo/bin without the prefix "drover-"; defaults to name
	args, env []string
	// content is the content of the files that the program reads when it starts. The program is restarted if the
	// content changes.
	content []byte
	// credential writes a new kubeconfig. It is called before the program starts.
	credential func(context.Context) error
	healthy    func(context.Context) error
}

// keepOrStart leaves a program running if it is healthy and was started from the same files. Otherwise, it starts the
// program and waits until it is healthy.
func (d *demo) keepOrStart(ctx context.Context, p program) (string, error) {
	path := d.files.bin("drover-" + cmp.Or(p.binary, p.name))
	binary, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read program: %w", err)
	}
	sum := sha256.Sum256(binary)
	from := digest(slices.Concat(p.args, p.env, []string{hex.EncodeToString(sum[:]), string(p.content)}))
	running := d.running(p.name)
	if running && d.state.startedFrom(p.name) == from && p.healthy(ctx) == nil {
		return "runs already", nil
	}
	if err := lab.StopDetached(ctx, d.files.pids(), p.name); err != nil {
		return "", err
	}
	if err := p.credential(ctx); err != nil {
		return "", err
	}
	process, err := lab.Command{
		Name: "the " + p.name, Path: path, Args: p.args, Env: append(minimalEnvironment(), p.env...), WorkDir: d.files.root,
		LogFile: d.files.log(p.name), PIDFile: d.files.pids() + "/" + p.name + ".pid", Detached: true,
	}.Start()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, programLimit, fmt.Errorf("not within %s", programLimit))
	defer cancel()
	if err := process.WaitReady(ctx, p.healthy); err != nil {
		return "", err
	}
	remark := fmt.Sprintf("pid %d", process.PID())
	if running {
		remark = "started anew, " + remark
	}
	return remark, d.state.setStarted(p.name, from)
}

// minimalEnvironment returns the current environment without variables that configure programs, such as proxies and
// kubeconfigs.
func minimalEnvironment() []string {
	var kept []string
	for _, name := range []string{"PATH", "HOME", "USER", "TMPDIR", "TZ", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			kept = append(kept, name+"="+value)
		}
	}
	return kept
}

func digest(parts []string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return hex.EncodeToString(sum[:])
}
