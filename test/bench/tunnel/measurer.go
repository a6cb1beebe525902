// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"

	"github.com/drover-dev/drover/internal/tunnel"
)

// measurer is the measuring process. It is one end of the tunnels, and the client.
type measurer struct {
	task
	backend   *child
	agent     *child
	backendAt address
	listenAt  address
	dial      *remotedialer.Server
	shared    tunnel.Memory

	mu       sync.Mutex // guards sessions
	sessions map[string]*tunnel.Session
}

// measureAsHub runs one measurement and writes its values to standard output.
func measureAsHub() error {
	t, ended, err := readTask()
	if err != nil {
		return err
	}
	go func() {
		<-ended
		os.Exit(0)
	}()
	logrus.SetOutput(io.Discard)
	h := &measurer{task: t, sessions: map[string]*tunnel.Session{}}
	defer h.stop()
	take, ok := map[string]func(*measurer) (map[string]float64, error){
		"latency": (*measurer).latency, "bulk": (*measurer).bulk, "fairness": (*measurer).fairness, "link": (*measurer).link,
		"memory": (*measurer).memory, "killed": (*measurer).killed, "hung": (*measurer).hung,
	}[t.Measure]
	if !ok {
		return fmt.Errorf("unknown measure %q", t.Measure)
	}
	values, err := take(h)
	if err != nil {
		return err
	}
	h.stop() // before the result, after which this process is ended
	return json.NewEncoder(os.Stdout).Encode(values)
}

// start starts the backend and, for a tunnel, the listener and the agent, and waits until all tunnels are open.
func (h *measurer) start(tunnels int, delay bool) error {
	var err error
	if h.backend, err = start("backend", task{Delay: delay && h.Contender == direct}); err != nil {
		return err
	}
	if h.backendAt, err = h.backend.address(); err != nil {
		return err
	}
	if h.Contender == direct {
		return nil
	}
	if err := h.listen(); err != nil {
		return err
	}
	h.agent, err = start("agent", task{Contender: h.Contender, Hub: h.listenAt, Backend: h.backendAt, Tunnels: tunnels, Delay: delay})
	if err != nil {
		return err
	}
	deadline := time.Now().Add(2 * time.Minute)
	for h.connected() < tunnels {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d tunnels after two minutes", h.connected(), tunnels)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// listen accepts tunnels.
func (h *measurer) listen() error {
	listener, at, err := listenTLS()
	if err != nil {
		return err
	}
	h.listenAt = at
	h.dial = remotedialer.New(func(r *http.Request) (string, bool, error) {
		return r.Header.Get(keyHeader), true, nil
	}, remotedialer.DefaultErrorWriter)
	var handler http.Handler = h.dial
	if h.Contender == drover {
		handler = http.HandlerFunc(h.accept)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(listener) }()
	return nil
}

func (h *measurer) accept(w http.ResponseWriter, r *http.Request) {
	session, err := tunnel.Accept(w, r, tunnel.Config{Memory: &h.shared})
	if err != nil {
		log.Print(err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions[r.Header.Get(keyHeader)] = session
}

// connected returns the number of open tunnels.
func (h *measurer) connected() int {
	if h.Contender == remoteDialer {
		return len(h.dial.ListClients())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions)
}

// client sends requests to the backend through one of the tunnels.
type client struct {
	http.RoundTripper
	backend address
	cool    func() // drops warm connections
}

func (h *measurer) client(key int) *client {
	switch h.Contender {
	case drover:
		h.mu.Lock()
		defer h.mu.Unlock()
		return &client{RoundTripper: h.sessions[strconv.Itoa(key)], backend: h.backendAt, cool: func() {}}
	case remoteDialer:
		transport := h.backendAt.transport()
		transport.DialContext = h.dial.Dialer(strconv.Itoa(key))
		return &client{RoundTripper: transport, backend: h.backendAt, cool: transport.CloseIdleConnections}
	default:
		transport := h.backendAt.transport()
		return &client{RoundTripper: transport, backend: h.backendAt, cool: transport.CloseIdleConnections}
	}
}

// send sends a request. The caller must close the body.
func (c *client) send(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+c.backend.Addr+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if header != nil {
		r.Header = header
	}
	return c.RoundTrip(r)
}

// get sends a GET request and reads the response.
func (c *client) get(ctx context.Context, path string, header http.Header) error {
	response, err := c.send(ctx, http.MethodGet, path, nil, header)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("status %s", response.Status))
	}
	return errors.Join(err, response.Body.Close())
}

func (h *measurer) stop() {
	for _, c := range []*child{h.agent, h.backend} {
		if c != nil {
			c.stop()
		}
	}
	h.agent, h.backend = nil, nil
}
