// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/drover-dev/drover/test/testkit"
)

// streams is a pod behind the hub and the ways to access its streams.
type streams struct {
	kubelet    *kubelet
	kubectl    string
	kubeconfig string
	env        []string // which protocol kubectl uses
	// executor creates client-go's executor for a protocol.
	executor func(*rest.Config, *url.URL) (remotecommand.Executor, error)
}

func testStreams(t *testing.T, s *system) {
	cluster, _ := s.ready(t, "streams")
	pod := startKubelet(t, s.member)
	kubeconfig := s.kubeconfig(t, cluster, demoToken)
	t.Run("logs -f shows each line when it is written", func(t *testing.T) {
		testLogs(t, &streams{kubelet: pod, kubectl: s.programs.Kubectl, kubeconfig: kubeconfig})
	})
	for protocol, use := range map[string]struct {
		websockets string
		executor   func(*rest.Config, *url.URL) (remotecommand.Executor, error)
	}{
		"SPDY": {"false", func(c *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(c, http.MethodPost, u)
		}},
		"WebSocket": {"true", func(c *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(c, http.MethodGet, u.String())
		}},
	} {
		t.Run("by "+protocol, func(t *testing.T) {
			x := &streams{kubelet: pod, kubectl: s.programs.Kubectl, kubeconfig: kubeconfig, executor: use.executor,
				env: []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + use.websockets, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + use.websockets}}
			t.Run("exec keeps standard output and standard error apart", func(t *testing.T) { testOutput(t, x) })
			t.Run("exec ends with the exit code of the command", func(t *testing.T) { testExitCode(t, x) })
			t.Run("exec still sends output after its input has ended", func(t *testing.T) { testHalfClose(t, x) })
			t.Run("exec sends output while it takes input", func(t *testing.T) { testConversation(t, x, "exec", "-i", pod.pod, "--", "cat") })
			t.Run("exec has a terminal that knows its size", func(t *testing.T) { testTerminal(t, x) })
			t.Run("attach shows output and takes input", func(t *testing.T) { testConversation(t, x, "attach", "-i", pod.pod, "--quiet") })
			t.Run("port-forward carries both ways and ends each way by itself", func(t *testing.T) { testPortForward(t, x) })
			t.Run("cp carries 64 MiB both ways unharmed", func(t *testing.T) { testCopy(t, x) })
		})
	}
	t.Run("a user who may not exec in the member is refused with the reason", func(t *testing.T) {
		_, err := s.kubectl(t, cluster, demoToken, "exec", pod.pod, "--as=bob", "--", "true")
		if err == nil || !strings.Contains(err.Error(), `"bob" cannot`) {
			t.Errorf("kubectl says %v", err)
		}
	})
}

// command returns a kubectl command that uses the protocol. It ends with the test at the latest.
func (x *streams) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(within(t, time.Minute), x.kubectl, append([]string{"--kubeconfig", x.kubeconfig}, args...)...)
	command.Env, command.WaitDelay = append(os.Environ(), x.env...), time.Second
	return command
}

// conversation is a running kubectl.
type conversation struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string // what it prints
	ended func() error
}

func (x *streams) converse(t *testing.T, args ...string) *conversation {
	t.Helper()
	command := x.command(t, args...)
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	complaint := &bytes.Buffer{}
	command.Stdout, command.Stderr = writer, complaint
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	c := &conversation{t: t, in: in, lines: make(chan string, 100)}
	go func() {
		defer close(c.lines)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			c.lines <- scanner.Text()
		}
	}()
	ended := make(chan error, 1)
	go func() {
		err := command.Wait()
		_ = writer.Close()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, complaint)
		}
		ended <- err
	}()
	c.ended = func() error {
		_ = in.Close()
		return <-ended
	}
	return c
}

// expect waits for the next line.
func (c *conversation) expect(want string) string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.t.Fatalf("kubectl ended: %v", c.ended())
		}
		if !strings.Contains(line, want) {
			c.t.Fatalf("got %q, want %q", line, want)
		}
		return line
	case <-time.After(testkit.Patience * 20 * time.Second):
		c.t.Fatalf("%q does not come", want)
	}
	return ""
}

func (c *conversation) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		c.t.Fatal(err)
	}
}

func testLogs(t *testing.T, x *streams) {
	c := x.converse(t, "logs", "-f", x.kubelet.pod)
	for _, line := range []string{"first", "second", "third"} {
		select {
		case x.kubelet.lines <- line:
		case <-time.After(testkit.Patience * 20 * time.Second):
			t.Fatal("no request follows the log")
		}
		c.expect(line)
	}
}

func testOutput(t *testing.T, x *streams) {
	var out, complaint bytes.Buffer
	command := x.command(t, "exec", x.kubelet.pod, "--", "sh", "-c", "echo out; echo complaint >&2")
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil || out.String() != "out\n" || complaint.String() != "complaint\n" {
		t.Errorf("%v: out %q, complaint %q", err, &out, &complaint)
	}
}

func testExitCode(t *testing.T, x *streams) {
	out, err := x.command(t, "exec", x.kubelet.pod, "--", "sh", "-c", "exit 3").CombinedOutput()
	if exitCode(err) != 3 || !strings.Contains(string(out), "exit code 3") {
		t.Errorf("got %v: %s, want exit code 3", err, out)
	}
	out, err = x.command(t, "exec", "-i", x.kubelet.pod, "--", "true").CombinedOutput()
	if err != nil {
		t.Errorf("a command without its input: %v: %s", err, out)
	}
}

func testHalfClose(t *testing.T, x *streams) {
	command := x.command(t, "exec", "-i", x.kubelet.pod, "--", "sh", "-c", "wc -c; echo more")
	command.Stdin = strings.NewReader("twelve bytes")
	out, err := command.CombinedOutput()
	if err != nil || strings.Join(strings.Fields(string(out)), " ") != "12 more" {
		t.Errorf("got %v: %q, want both lines of the log", err, out)
	}
}

func testConversation(t *testing.T, x *streams, args ...string) {
	c := x.converse(t, args...)
	if args[0] == "attach" {
		c.expect("attached")
	}
	for _, line := range []string{"one", "two"} {
		c.say(line)
		c.expect(line)
	}
	if err := c.ended(); err != nil {
		t.Error(err)
	}
}

// sizes are the sizes of a user's terminal.
type sizes chan remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func testTerminal(t *testing.T, x *streams) {
	config, err := clientcmd.BuildConfigFromFlags("", x.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host + "/api/v1/namespaces/default/pods/" + x.kubelet.pod + "/exec?command=sh&stdin=true&stdout=true&tty=true")
	if err != nil {
		t.Fatal(err)
	}
	executor, err := x.executor(config, target)
	if err != nil {
		t.Fatal(err)
	}
	in, say := io.Pipe()
	hear, out := io.Pipe()
	size := make(sizes)
	ended := make(chan error, 1)
	go func() {
		err := executor.StreamWithContext(within(t, 30*time.Second), remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
		_ = out.CloseWithError(io.EOF)
		ended <- err
	}()
	lines := bufio.NewScanner(hear)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, want %q: %v", lines.Text(), want, lines.Err())
		}
	}
	size <- remotecommand.TerminalSize{Width: 80, Height: 24}
	expect("80x24")
	_, _ = io.WriteString(say, "hello\n")
	expect("hello")
	size <- remotecommand.TerminalSize{Width: 132, Height: 43}
	expect("132x43")
	_, _ = io.WriteString(say, "exit\n")
	_ = say.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(size)
}

func testPortForward(t *testing.T, x *streams) {
	c := x.converse(t, "port-forward", "pod/"+x.kubelet.pod, "--address=127.0.0.1", ":8080")
	address := strings.Fields(c.expect("Forwarding from"))[2]
	for range 2 { // a second connection after the first has ended
		forwardOnce(t, address)
	}
}

func forwardOnce(t *testing.T, address string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience * 20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "ping"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "ping" {
		t.Fatalf("got %v: %q, want \"ping\"", err, answer)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatal("not TCP")
	}
	if err := tcp.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); err != nil || string(rest) != "port 8080: 4 bytes" {
		t.Errorf("got %v: %q, want that 4 bytes came to port 8080", err, rest)
	}
}

func testCopy(t *testing.T, x *streams) {
	const size = 64 << 20
	dir := t.TempDir()
	sent, there, back := filepath.Join(dir, "sent"), filepath.Join(dir, "there"), filepath.Join(dir, "back")
	content := make([]byte, size)
	_, _ = rand.Read(content)
	if err := os.WriteFile(sent, content, 0o600); err != nil {
		t.Fatal(err)
	}
	inPod := x.kubelet.pod + ":" + there
	for _, args := range [][]string{{"cp", sent, inPod}, {"cp", inPod, back}} {
		took, err := x.copy(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%.0f MiB/s", size/(1<<20)/took.Seconds())
	}
	for _, file := range []string{there, back} {
		got, err := os.ReadFile(file)
		if err != nil || sha256.Sum256(got) != sha256.Sum256(content) {
			t.Errorf("%s differs: %d bytes, %v", filepath.Base(file), len(got), err)
		}
	}
}

// copy runs kubectl cp, and returns how long it took. It repeats a copy that was cut off, because Kubernetes itself
// cuts off some copies that take over 5 s (https://github.com/kubernetes/kubernetes/issues/60140). A kubelet or an API
// server that has sent everything closes its connection at once. If kubectl then sends a ping, as it does every 5 s,
// the kernel discards the data that the other side has not received yet. A busy machine loses data in this way without
// the hub, too.
func (x *streams) copy(t *testing.T, args ...string) (took time.Duration, err error) {
	t.Helper()
	for range 10 {
		began := time.Now()
		out, failed := x.command(t, args...).CombinedOutput()
		if failed == nil {
			return time.Since(began), nil
		}
		err = fmt.Errorf("%v after %s: %w: %s", args, time.Since(began), failed, out)
		if !bytes.Contains(out, []byte("EOF")) {
			return 0, err
		}
		t.Log("cut off, and repeated: ", err)
	}
	return 0, err
}
