// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"

	"github.com/gorilla/websocket"
	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"

	"github.com/drover-dev/drover/internal/tunnel"
)

const (
	keyHeader  = "X-Bench-Tunnel" // which of many tunnels this is
	coldHeader = "X-Bench-Cold"   // a request that must find no warm connection to the backend
)

// serveAgent runs the process next to the backend that opens the tunnels.
func serveAgent() error {
	t, ended, err := readTask()
	if err != nil {
		return err
	}
	logrus.SetOutput(io.Discard)
	if t.Delay {
		if t.Hub.Addr, err = delayed(t.Hub.Addr); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-ended
		cancel()
	}()
	open := openDrover(t)
	if t.Contender == remoteDialer {
		open = openRemoteDialer(t)
	}
	var wait sync.WaitGroup
	failed := make(chan error, t.Tunnels)
	slots := make(chan struct{}, 8) // handshakes at once, so that none of thousands times out
	for i := range t.Tunnels {
		slots <- struct{}{}
		wait.Go(func() {
			if err := open(ctx, strconv.Itoa(i), func() { <-slots }); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("tunnel %d: %w", i, err)
				cancel()
			}
		})
	}
	wait.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// opener keeps one tunnel open until its context ends, and calls opened once when the tunnel is open.
type opener func(ctx context.Context, key string, opened func()) error

func openDrover(t task) opener {
	target, _ := url.Parse("https://" + t.Backend.Addr)
	transport := t.Backend.transport()
	var memory tunnel.Memory
	proxy := &httputil.ReverseProxy{
		Transport:  transport,
		BufferPool: &copyBuffers{},
		ErrorLog:   log.New(io.Discard, "", 0), // requests that the client cancels
		Rewrite: func(r *httputil.ProxyRequest) {
			if r.In.Header.Get(coldHeader) != "" {
				transport.CloseIdleConnections()
			}
			r.SetURL(target)
		},
	}
	return func(ctx context.Context, key string, opened func()) error {
		dialer := tunnel.Dialer{Config: tunnel.Config{Memory: &memory}, TLS: t.Hub.trust()}
		conn, err := dialer.Dial(ctx, "wss://"+t.Hub.Addr+"/", http.Header{keyHeader: {key}})
		opened()
		if err != nil {
			return err
		}
		return conn.Serve(ctx, proxy)
	}
}

// copyBuffers is a pool of buffers that saves the proxy 32 KiB of garbage per request.
type copyBuffers struct{ pool sync.Pool }

func (b *copyBuffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[]byte); ok {
		return *buffer
	}
	return make([]byte, 32<<10)
}

func (b *copyBuffers) Put(buffer []byte) { b.pool.Put(&buffer) }

func openRemoteDialer(t task) opener {
	dialer := &websocket.Dialer{TLSClientConfig: t.Hub.trust(), HandshakeTimeout: remotedialer.HandshakeTimeOut}
	return func(ctx context.Context, key string, opened func()) error {
		once := sync.OnceFunc(opened)
		defer once()
		err := remotedialer.ConnectToProxy(ctx, "wss://"+t.Hub.Addr+"/", http.Header{keyHeader: {key}},
			func(string, string) bool { return true }, dialer,
			func(context.Context, *remotedialer.Session) error {
				once()
				return nil
			})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
}
