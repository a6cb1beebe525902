// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
)

// The numbers of BenchmarkStreams: streams, each of another user; Clusters; and Clusters that change per second.
const (
	benchStreams  = 1000
	benchClusters = 2000
	benchChanges  = 10
	benchFor      = 20 * time.Second
	benchHub      = "DROVER_BENCH_HUB" // the address for the process of the clients
)

// BenchmarkStreams reports the cost of a stream for the process that serves it: memory and goroutines after all objects
// were sent, and the CPU time of one change for each stream. The clients run in another process. Run it with -benchtime
// 1x.
func BenchmarkStreams(b *testing.B) {
	if hub := os.Getenv(benchHub); hub != "" {
		readAll(b, hub)
		return
	}
	s := New(Options{
		Authenticate: func(r *http.Request) (identity.Identity, error) {
			user := r.Header.Get("Authorization")
			return identity.Identity{User: user, Hub: authenticationv1.UserInfo{Username: user}}, nil
		},
		Watch: func(context.Context, identity.Identity, string, string) (bool, error) { return true, nil },
		Now:   time.Now,
	})
	for _, f := range s.feeds {
		f.started = true
	}
	version := 0
	change := func(i int) {
		version++
		o := cluster("team", fmt.Sprint("c", i), version)
		o.Status = v1.ClusterStatus{Version: "v1.36.3", Conditions: []metav1.Condition{
			{Type: "Ready", Status: "True", Reason: "Ready", Message: "the cluster is connected"},
			{Type: "Connected", Status: "True", Reason: "Connected"}, {Type: "Registered", Status: "True", Reason: "Registered"},
		}}
		s.feeds["clusters"].see(s, o, false)
	}
	for i := range benchClusters {
		change(i)
	}
	mux := http.NewServeMux()
	s.Register(b.Context(), mux)
	listener := httptest.NewTLSServer(mux)
	defer listener.Close()
	goroutines, memory := runtime.NumGoroutine(), held()
	clients := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^$", "-test.bench", "BenchmarkStreams",
		"-test.benchtime", "1x")
	clients.Env = append(os.Environ(), benchHub+"="+listener.URL)
	said, err := clients.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := clients.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = clients.Process.Kill(); _ = clients.Wait() }()
	for lines := bufio.NewScanner(said); lines.Scan() && lines.Text() != "ready"; {
	}
	b.ReportMetric(float64(held()-memory)/benchStreams/1000, "kB/stream")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/benchStreams, "goroutines/stream")
	begun, before := time.Now(), cpu(b)
	changes := 0
	for tick := time.NewTicker(time.Second / benchChanges); time.Since(begun) < benchFor; changes++ {
		<-tick.C
		change(changes % benchClusters)
	}
	used := cpu(b) - before
	b.ReportMetric(float64(used.Microseconds())/float64(changes)/benchStreams, "µs-CPU/change/stream")
	b.ReportMetric(used.Seconds()/time.Since(begun).Seconds()*100, "%-of-a-core")
}

// held returns the memory of objects and stacks, in bytes.
func held() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// readAll opens all streams, reports when each of them has received its first bookmark, and reads until the process is
// killed.
func readAll(b *testing.B, hub string) {
	at, err := url.Parse(hub)
	if err != nil {
		b.Fatal(err)
	}
	ready := make(chan struct{})
	for i := range benchStreams {
		go func() {
			conn, err := tls.Dial("tcp", at.Host, &tls.Config{InsecureSkipVerify: true}) // the server is this test
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = fmt.Fprintf(conn, "GET %s?kind=clusters HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: "+
				"websocket\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nAuthorization: %s\r\n\r\n",
				Path, at.Host, "AQIDBAUGBwgJCgsMDQ4PEA==", strconv.Itoa(i))
			read, seen := make([]byte, 64<<10), ""
			for !strings.Contains(seen, `"resume"`) {
				n, err := conn.Read(read)
				if err != nil {
					b.Error(err)
					return
				}
				seen = seen[max(0, len(seen)-16):] + string(read[:n])
			}
			ready <- struct{}{}
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, read)
		}()
	}
	for range benchStreams {
		<-ready
	}
	_, _ = fmt.Fprintln(os.Stdout, "ready")
	select {}
}
