// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// Growth since the start that does not indicate a leak, because connections are distributed differently and caches are
// filled.
const (
	goroutineShare, goroutineSlack = 1.25, 60.0
	memoryShare, memorySlack       = 1.5, 30 << 20
)

// usage is the resource usage of processes.
type usage struct {
	goroutines float64          // of all managers: tunnels end on any of them
	agent      float64          // goroutines of one agent
	resident   map[string]int64 // bytes of each process
}

// weigh measures all managers and agents. It ends one agent, because its goroutines are counted in this way.
func (s *system) weigh(ctx context.Context) (usage, error) {
	w := usage{resident: map[string]int64{}}
	for name, k := range s.keepers {
		process, err := k.up(ctx)
		if err != nil {
			return w, err
		}
		usage, err := process.Usage()
		if err != nil {
			return w, err
		}
		w.resident[name] = usage.RSS
	}
	for _, replica := range s.hub.Replicas {
		n, err := s.managerGoroutines(ctx, replica.Metrics)
		if err != nil {
			return w, fmt.Errorf("weigh %s: %w", replica.Name, err)
		}
		s.journal.note("%s: %.0f goroutines, %d MiB resident", replica.Name, n, w.resident[replica.Name]>>20)
		w.goroutines += n
	}
	var err error
	if w.agent, err = s.agentGoroutines(ctx, s.agents[0]); err != nil {
		return w, fmt.Errorf("weigh %s: %w", s.agents[0], err)
	}
	for _, name := range s.agents {
		s.journal.note("%s: %d MiB resident", name, w.resident[name]>>20)
	}
	s.journal.note("%s: %.0f goroutines", s.agents[0], w.agent)
	return w, nil
}

// leaks lists the resources that have grown between two measurements.
func (w usage) leaks(later usage) []string {
	var found []string
	if most := w.goroutines*goroutineShare + goroutineSlack; later.goroutines > most {
		found = append(found, fmt.Sprintf("goroutines of all managers: %.0f, then %.0f", w.goroutines, later.goroutines))
	}
	if most := w.agent*goroutineShare + goroutineSlack; later.agent > most {
		found = append(found, fmt.Sprintf("goroutines of an agent: %.0f, then %.0f", w.agent, later.agent))
	}
	for name, before := range w.resident {
		if after := later.resident[name]; float64(after) > float64(before)*memoryShare+memorySlack {
			found = append(found, fmt.Sprintf("%s resident: %d MiB, then %d MiB", name, before>>20, after>>20))
		}
	}
	return found
}

func (s *system) managerGoroutines(ctx context.Context, address string) (float64, error) {
	bundle, err := os.ReadFile(filepath.Join(s.dir, "ca.crt"))
	if err != nil {
		return 0, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+userToken)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	match := regexp.MustCompile(`(?m)^go_goroutines (\S+)$`).FindSubmatch(body)
	if match == nil {
		return 0, fmt.Errorf("%s: its metrics have no go_goroutines", response.Status)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}

// agentGoroutines ends an agent with the signal on which a Go program dumps its goroutines. The agent's keeper starts
// it again.
func (s *system) agentGoroutines(ctx context.Context, name string) (float64, error) {
	k := s.keepers[name]
	count := 0
	err := k.down(ctx, 0, func(p *lab.Process) error {
		before, err := os.Stat(p.LogFile())
		if err != nil {
			return err
		}
		if err := p.Signal(syscall.SIGQUIT); err != nil {
			return err
		}
		select {
		case <-p.Exited():
		case <-time.After(10 * time.Second):
			return fmt.Errorf("it does not end on %v", syscall.SIGQUIT)
		}
		text, err := os.ReadFile(p.LogFile())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text[before.Size():])) {
			if rest, ok := strings.CutPrefix(line, "goroutine "); ok && !strings.HasPrefix(rest, "0 ") && strings.Contains(rest, " [") {
				count++
			}
		}
		return nil
	})
	return float64(count), err
}

// lookThroughLogs finds panics, data races and fatal errors in the logs.
func (s *system) lookThroughLogs() error {
	files, err := filepath.Glob(filepath.Join(s.dir, "*", "*.log"))
	if err != nil {
		return err
	}
	bad := regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE).*$|Observed a panic|http: panic serving`)
	for _, file := range append(files, filepath.Join(s.dir, "fleetsim.log")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if at := bad.FindIndex(text); at != nil {
			s.journal.fault("%s: %s", file, text[at[0]:min(len(text), at[0]+3000)])
		}
	}
	return nil
}
