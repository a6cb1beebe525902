// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// envOffline is the folder with the bundle and the programs, for the part of the test that runs in a network namespace.
const envOffline = "DROVER_TEST_OFFLINE"

const (
	registryAddress = "127.0.0.1:5443"
	plainAddress    = "127.0.0.1:5000"
	registryUser    = "pusher"
	hubURL          = "https://hub.test:8443"
)

// TestTheBundleInstallsWithoutANetwork builds a bundle, a registry and Kubernetes, and runs the test below in a network
// namespace that has only a loopback interface.
func TestTheBundleInstallsWithoutANetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace requires root")
	}
	_, bundle := testBundle(t)
	dir := t.TempDir()
	if err := os.Rename(bundle, filepath.Join(dir, filepath.Base(bundle))); err != nil {
		t.Fatal(err)
	}
	inRepository(t, nil, "go", "build", "-C", "test/registry", "-o", filepath.Join(dir, "registry"), ".")
	labctl := filepath.Join(dir, "labctl")
	inRepository(t, nil, "go", "build", "-o", labctl, "./hack/labctl")
	kubectl := strings.TrimSpace(string(inRepository(t, nil, labctl, "build", "kubectl")))
	if err := os.Symlink(kubectl, filepath.Join(dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	inRepository(t, nil, labctl, "build")
	inside := exec.CommandContext(t.Context(), must2(os.Executable()), "-test.run=^TestInsideTheNamespace$", "-test.v")
	inside.Env = append(os.Environ(), envOffline+"="+dir)
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := inside.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestInsideTheNamespace")) {
		t.Errorf("the installation without a network failed: %v", err)
	}
}

// offline is an administrator with nothing but the unpacked bundle, a shell and kubectl.
type offline struct {
	t          *testing.T
	dir        string // of the programs
	bundle     string // the unpacked bundle
	home       string
	kubeconfig string
}

// TestInsideTheNamespace is a part of the test above.
func TestInsideTheNamespace(t *testing.T) {
	dir := os.Getenv(envOffline)
	if dir == "" {
		t.Skip("it is a part of TestTheBundleInstallsWithoutANetwork, which runs it")
	}
	if out, err := exec.CommandContext(t.Context(), "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("start the loopback interface: %v: %s", err, out)
	}
	if _, err := net.DialTimeout("tcp", "192.0.2.1:443", time.Second); !errors.Is(err, syscall.ENETUNREACH) {
		t.Fatalf("a connection to another machine ends with %v, want no route", err)
	}
	o := &offline{
		t: t, dir: dir, bundle: unpackBundle(t, filepath.Join(dir, "drover-v1.2.3-offline.tar")), home: t.TempDir(),
	}
	ca, password := o.startRegistries()
	o.startControlPlane()
	o.damaged()
	o.refused(ca)
	o.login(password)
	o.installs(ca)
	o.pushesWithoutTLS()
	o.writes(ca)
}

// startRegistries starts one registry with TLS of a private CA and a password, and one with neither.
func (o *offline) startRegistries() (ca, password string) {
	ca, key := o.certificate()
	password = rand.Text()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		o.t.Fatal(err)
	}
	users := o.file("htpasswd", registryUser+":"+string(hash)+"\n")
	const common = "version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp:\n  addr: %s\n"
	secured := fmt.Sprintf(common+"  tls: {certificate: %q, key: %q}\nauth: {htpasswd: {realm: test, path: %q}}\n",
		o.t.TempDir(), registryAddress, ca, key, users)
	o.startRegistry(registryAddress, o.file("secured.yaml", secured))
	o.startRegistry(plainAddress, o.file("plain.yaml", fmt.Sprintf(common, o.t.TempDir(), plainAddress)))
	return ca, password
}

func (o *offline) startRegistry(address, config string) {
	ctx, cancel := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, filepath.Join(o.dir, "registry"), "serve", config)
	var problems bytes.Buffer
	server.Stdout, server.Stderr = &problems, &problems
	if err := server.Start(); err != nil {
		o.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Wait() }()
	o.t.Cleanup(func() { cancel(); <-ended })
	deadline := time.After(time.Minute)
	for {
		if connection, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			_ = connection.Close()
			return
		}
		select {
		case <-ended:
			o.t.Fatalf("the registry at %s ended: %s", address, problems.String())
		case <-deadline:
			o.t.Fatalf("the registry at %s does not listen", address)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// certificate writes a self-signed certificate for loopback and its key.
func (o *offline) certificate() (certificate, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		o.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private CA"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		o.t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		o.t.Fatal(err)
	}
	return o.file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))),
		o.file("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey})))
}

func (o *offline) file(name, content string) string {
	path := filepath.Join(o.home, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		o.t.Fatal(err)
	}
	return path
}

func (o *offline) startControlPlane() {
	labctl, state := filepath.Join(o.dir, "labctl"), filepath.Join(o.home, "plane")
	o.t.Cleanup(func() {
		down := exec.CommandContext(context.WithoutCancel(o.t.Context()), labctl, "down", "--dir", state)
		if out, err := down.CombinedOutput(); err != nil {
			o.t.Errorf("stop the control plane: %v: %s", err, out)
		}
	})
	out, err := exec.CommandContext(o.t.Context(), labctl, "up", "--dir", state).Output()
	if err != nil {
		o.t.Fatalf("start a control plane: %v: %s", err, out)
	}
	o.kubeconfig = strings.TrimSpace(string(out))
}

// login writes what "docker login" writes.
func (o *offline) login(password string) {
	auth := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + password))
	o.file(".docker/config.json", fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registryAddress, auth))
}

// script runs install.sh with an environment that has neither Go nor a container engine.
func (o *offline) script(args ...string) (string, error) {
	command := exec.CommandContext(o.t.Context(), filepath.Join(o.bundle, "install.sh"), args...)
	command.Env = []string{"PATH=" + o.tools(), "HOME=" + o.home, "KUBECONFIG=" + o.kubeconfig}
	out, err := command.CombinedOutput()
	return string(out), err
}

// tools returns a PATH with only the programs that the documentation requires.
func (o *offline) tools() string {
	bin := filepath.Join(o.home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		o.t.Fatal(err)
	}
	for _, name := range []string{
		"sh", "tar", "gzip", "awk", "cat", "chmod", "cp", "cut", "dirname", "grep", "ln", "mkdir", "mktemp", "mv", "rm",
		"sha256sum", "tr", "uname",
	} {
		path, err := exec.LookPath(name)
		if err != nil {
			o.t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil && !errors.Is(err, os.ErrExist) {
			o.t.Fatal(err)
		}
	}
	kubectl := filepath.Join(bin, "kubectl")
	if err := os.Symlink(filepath.Join(o.dir, "kubectl"), kubectl); err != nil && !errors.Is(err, os.ErrExist) {
		o.t.Fatal(err)
	}
	return bin
}

// fails runs install.sh and expects that it fails with a message, before it changes the cluster.
func (o *offline) fails(want string, args ...string) {
	o.t.Helper()
	if out, err := o.script(args...); err == nil || !strings.Contains(out, want) {
		o.t.Errorf("install.sh %s: %v, and it prints %q; want an error with %q", strings.Join(args, " "), err, out, want)
	}
	if out := o.kubectl("get", "crds", "-o", "name"); out != "" {
		o.t.Errorf("after the error the cluster has %q", out)
	}
}

func (o *offline) kubectl(args ...string) string {
	o.t.Helper()
	command := exec.CommandContext(o.t.Context(), filepath.Join(o.dir, "kubectl"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+o.kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil {
		o.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (o *offline) damaged() {
	path := filepath.Join(o.bundle, "images", "drover.tar")
	good, err := os.ReadFile(path)
	if err != nil {
		o.t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	if err := os.WriteFile(path, bad, 0o644); err != nil {
		o.t.Fatal(err)
	}
	args := []string{"--registry", plainAddress, "--plain-http", "--url", hubURL}
	o.fails("images/drover.tar: FAILED", args...)
	if code := o.get("http://"+plainAddress+"/v2/drover/tags/list", nil, ""); code != http.StatusNotFound {
		o.t.Errorf("the registry answers %d, want 404: nothing may be pushed from a damaged bundle", code)
	}
	if err := os.WriteFile(path, good, 0o644); err != nil {
		o.t.Fatal(err)
	}
}

// get returns the status code of a registry.
func (o *offline) get(url string, roots *x509.CertPool, password string) int {
	o.t.Helper()
	request, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	request.Header.Set("Accept", "application/vnd.oci.image.index.v1+json")
	if password != "" {
		request.Header.Set("Authorization", "Basic "+password)
	}
	trusting := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	client := http.Client{Transport: trusting}
	response, err := client.Do(request)
	if err != nil {
		o.t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func (o *offline) refused(ca string) {
	secured := []string{"--registry", registryAddress, "--url", hubURL}
	o.fails("--registry-ca", secured...)
	o.fails("docker login", append(secured, "--registry-ca", ca)...)
	o.fails("--plain-http", "--registry", plainAddress, "--url", hubURL)
	o.fails("does not name a registry", "--registry", "platform", "--url", hubURL)
	o.fails("push to 127.0.0.1:1", "--registry", "127.0.0.1:1", "--url", hubURL)
	o.fails("--sign-in: the first address", append(secured, "--sign-in", "--url", "https://hub.test:443")...)
	o.fails("is not a port", append(secured, "--node-port", "https")...)
	o.fails("exclude each other", append(secured, "--node-port", "30443", "--load-balancer")...)
	o.fails("is not an https address", "--registry", registryAddress, "--url", "http://hub.test")
	o.fails("does not reach the cluster", append(secured, "--context", "unknown")...)
}

func (o *offline) installs(ca string) {
	plugins := o.t.TempDir()
	args := []string{
		"--registry", registryAddress + "/platform", "--registry-ca", ca, "--url", hubURL + ",https://two.test",
		"--sign-in", "--no-wait", "--plugin-dir", plugins, "--node-port", "30443",
	}
	const pod = ".spec.template.spec"
	state := func() string {
		return o.kubectl("--namespace", manifestNamespace, "get", "deployment/drover-manager", "-o",
			"jsonpath={.metadata.generation} {"+pod+".containers[0].image} {"+pod+".volumes[*].configMap.name}")
	}
	out, err := o.script(args...)
	if err != nil {
		o.t.Fatalf("install.sh: %v: %s", err, out)
	}
	o.t.Logf("install.sh prints:\n%s", out)
	if next := "kubectl drover import "; !strings.Contains(out, next) || !strings.Contains(out, "export PATH="+plugins) {
		o.t.Errorf("install.sh ends without %q and the PATH of the plugin", next)
	}
	exposed := o.kubectl("--namespace", manifestNamespace, "get", "service/drover", "-o",
		"jsonpath={.spec.type} {.spec.ports[*].nodePort}")
	if exposed != "NodePort 30443" {
		o.t.Errorf("the hub's Service is %q, want the port of the nodes", exposed)
	}
	first := state()
	fields := strings.Fields(first)
	if len(fields) != 3 || !strings.HasPrefix(fields[1], registryAddress+"/platform/drover@sha256:") {
		o.t.Fatalf("the manager has %q, want the image in the registry by its digest", first)
	}
	config := o.kubectl("--namespace", manifestNamespace, "get", "configmap/"+fields[2], "-o", "jsonpath={.data}")
	if !strings.Contains(config, `signIn: {issuer: \"`+hubURL+`\"}`) {
		o.t.Errorf("the configuration is %s, want it to let users sign in at %s", config, hubURL)
	}
	if !strings.Contains(config, hubURL) || !strings.Contains(config, "https://two.test") ||
		strings.Contains(config, "drover.example.com") {
		o.t.Errorf("the configuration is %s, want both addresses", config)
	}
	o.pulls(ca, fields[1])
	plugin := exec.CommandContext(o.t.Context(), filepath.Join(plugins, "kubectl_complete-drover"))
	if program, err := plugin.Output(); err != nil || string(program) != "the plugin\n" {
		o.t.Errorf("the plugin prints %q, %v", program, err)
	}
	if out, err := o.script(args...); err != nil {
		o.t.Errorf("again: %v: %s", err, out)
	}
	if second := state(); second != first {
		o.t.Errorf("the second run changed the manager from %q to %q", first, second)
	}
}

// pulls gets the image as a node does.
func (o *offline) pulls(ca, image string) {
	text, err := os.ReadFile(ca)
	if err != nil {
		o.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	config, err := os.ReadFile(filepath.Join(o.home, ".docker", "config.json"))
	if err != nil {
		o.t.Fatal(err)
	}
	_, auth, _ := strings.Cut(string(config), `"auth":"`)
	auth, _, _ = strings.Cut(auth, `"`)
	_, digest, _ := strings.Cut(image, "@")
	manifests := "https://" + registryAddress + "/v2/platform/drover/manifests/"
	for _, reference := range []string{digest, "v1.2.3"} {
		if code := o.get(manifests+reference, roots, auth); code != http.StatusOK {
			o.t.Errorf("the registry answers %d for %s", code, reference)
		}
	}
}

func (o *offline) pushesWithoutTLS() {
	if out, err := o.script("--registry", plainAddress, "--plain-http", "--push-only"); err != nil {
		o.t.Errorf("push without TLS: %v: %s", err, out)
	}
	if code := o.get("http://"+plainAddress+"/v2/drover/manifests/v1.2.3", nil, ""); code != http.StatusOK {
		o.t.Errorf("the registry without TLS answers %d", code)
	}
}

func (o *offline) writes(ca string) {
	output := filepath.Join(o.t.TempDir(), "hub.yaml")
	args := []string{
		"--registry", registryAddress, "--registry-ca", ca, "--url", hubURL, "--load-balancer", "--output", output,
	}
	if out, err := o.script(args...); err != nil {
		o.t.Fatalf("install.sh: %v: %s", err, out)
	}
	text, err := os.ReadFile(output)
	if err != nil {
		o.t.Fatal(err)
	}
	want := []byte("image: " + registryAddress + "/drover@sha256:")
	if n := bytes.Count(text, []byte("\n  type: LoadBalancer\n")); n != 1 {
		o.t.Errorf("the manifests have %d load balancers, want one", n)
	}
	if bytes.Contains(text, []byte("signIn: {issuer")) {
		o.t.Error("without --sign-in the manifests have an issuer")
	}
	if !bytes.Contains(text, want) || bytes.Contains(text, []byte("image: registry.test")) {
		o.t.Error("the manifests do not have the image in the registry")
	}
}
