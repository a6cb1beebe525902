// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/framework"
)

const (
	streamIdle    = 4 * time.Minute
	streamOpening = 30 * time.Second
)

// kubelet is a node with the API of a kubelet. A command executed in its only pod runs as a process of this machine.
type kubelet struct {
	pod, dir string
	// lines are the lines that the container logs, sent separately.
	lines chan string
}

// startKubelet creates a node and a pod in a plane. The plane's API server reaches the kubelet as it reaches any other.
func startKubelet(t *testing.T, plane *framework.Plane) *kubelet {
	t.Helper()
	k := &kubelet{pod: "streams", dir: t.TempDir(), lines: make(chan string)}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.serveExec)
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", k.serveAttach)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.servePortForward)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadHeaderTimeout = 10 * time.Second
	server.StartTLS()
	t.Cleanup(server.CloseClientConnections)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	create(t, plane, node)
	before := node.DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	patchStatus(t, plane, node, before)
	k.createPod(t, plane, node.Name)
	return k
}

func (k *kubelet) createPod(t *testing.T, plane *framework.Plane, node string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: k.pod}, Spec: corev1.PodSpec{
		NodeName:    node,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers:  []corev1.Container{{Name: "main", Image: "none", Stdin: true}},
	}}
	create(t, plane, pod)
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: true, ContainerID: "fake://main",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
	patchStatus(t, plane, pod, before)
}

// patchStatus patches only the changed fields, because the member's controllers change the object at the same time.
func patchStatus(t *testing.T, plane *framework.Plane, object, before client.Object) {
	t.Helper()
	if err := plane.Client.Status().Patch(t.Context(), object, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

func (k *kubelet) serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], options,
		streamIdle, streamOpening, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) serveAttach(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), options,
		streamIdle, streamOpening, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) servePortForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", options, streamIdle, streamOpening, portforward.SupportedProtocols)
}

// serveLogs follows the log until the reader has disconnected.
func (k *kubelet) serveLogs(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	for {
		if control.Flush() != nil {
			return
		}
		select {
		case line := <-k.lines:
			_, _ = fmt.Fprintln(w, line)
		case <-r.Context().Done():
			return
		}
	}
}

// ExecInContainer runs a command, in a terminal if requested.
func (k *kubelet) ExecInContainer(ctx context.Context, _, _, _ string, argv []string, in io.Reader, out, complaint io.WriteCloser,
	tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if tty {
		return terminal(in, out, resize)
	}
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Dir, command.Stdout, command.Stderr = k.dir, out, complaint
	if in != nil {
		stdin, err := command.StdinPipe()
		if err != nil {
			return err
		}
		// A command may end while its user is still typing. This goroutine ends when the connection does.
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	err := command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exited{exit}
	}
	return err
}

// exited is an error with the exit code of a command, in the form that the streaming library expects.
type exited struct{ *exec.ExitError }

// ExitStatus returns the command's exit code.
func (e exited) ExitStatus() int { return e.ExitCode() }

// terminal prints its size whenever it changes. It echoes every line until a line is "exit".
func terminal(in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- scanner.Text()
			if scanner.Text() == "exit" {
				return
			}
		}
	}()
	for {
		select {
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			_, _ = fmt.Fprintf(out, "%dx%d\r\n", size.Width, size.Height)
		case line, ok := <-lines:
			if !ok || line == "exit" {
				return nil
			}
			_, _ = fmt.Fprintf(out, "%s\r\n", line)
		}
	}
}

// AttachContainer attaches to a process that prints a greeting and echoes its input.
func (k *kubelet) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, complaint io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize) error {
	_, _ = io.WriteString(out, "attached\n")
	if complaint != nil {
		_, _ = io.WriteString(complaint, "complaint\n")
	}
	if in != nil {
		_, _ = io.Copy(out, in)
	}
	return nil
}

// PortForward echoes its input. When the other side has closed its stream, PortForward writes how many bytes it has
// received.
func (k *kubelet) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	n, err := io.Copy(stream, stream)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stream, "port %d: %d bytes", port, n)
	return err
}
