// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// k3s is a hub with machines that become a cluster.
type k3s struct {
	*system
	t        *testing.T
	assets   map[string]string
	standIn  string // the program
	shared   string // a folder of all machines
	socket   string // that leads to the hub
	network  *lab.Process
	machines map[string]*machine
	made     int
}

// addressOf returns the address of a machine by its number.
func addressOf(n int) string { return fmt.Sprintf("10.77.0.%d", n) }

// switchOf is a separate network with a bridge, to which machines are connected.
const switchOf = `ip link add br0 type bridge && ip link set br0 up && echo ready && exec sleep infinity`

// connected waits for the machine's end of its cable. The machine has no other network interface, except for the
// connection to the hub.
const connected = `set -e
address=$1 hub=$2 socket=$3 k3s=$4
shift 4
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip addr add "$address/24" dev eth0
ip link set eth0 up
"$k3s" relay "$hub" "$socket" &
ln -s "$0/tools/install.sh" /usr/local/install.sh
ln -sf "$0/tools/systemctl" /usr/local/sbin/systemctl
exec "$@"`

// installScript stands in for the install script of k3s.
const installScript = `#!/bin/sh
set -eu
echo "install $INSTALL_K3S_EXEC $INSTALL_K3S_VERSION" >>@OUT@/ran
ln -sf @OUT@/tools/k3s /usr/local/bin/k3s
if test -z "${INSTALL_K3S_SKIP_DOWNLOAD:-}"; then echo "$INSTALL_K3S_VERSION" >/usr/local/k3s-version; fi
suffix=; if test "$INSTALL_K3S_EXEC" = agent; then suffix=-agent; fi
cat >"/usr/local/bin/k3s$suffix-uninstall.sh" <<-EOF
	#!/bin/sh
	systemctl stop "k3s$suffix"
	rm -rf "\$K3S_DATA_DIR" /etc/rancher/k3s /usr/local/bin/k3s /usr/local/k3s-version
	echo uninstall >>@OUT@/ran
EOF
chmod +x "/usr/local/bin/k3s$suffix-uninstall.sh"
`

func startK3s(t *testing.T) *k3s {
	t.Helper()
	return startWithMachines(t, nil, framework.Provisioner{Folders: []string{"config/provision"}})
}

// startWithMachines starts a hub with a provisioner, and a network for machines. Some objects are applied before the
// provisioner starts.
func startWithMachines(t *testing.T, objects []byte, provisioner framework.Provisioner) *k3s {
	t.Helper()
	prerequisites(t)
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Etcd, lab.APIServer)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := lab.EtcdTools(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	assets[lab.Etcdutl] = tools.Assets[lab.Etcdutl]
	k := &k3s{system: build(t), t: t, assets: assets, machines: map[string]*machine{}}
	k.standIn, k.shared, k.socket = filepath.Join(k.dir, "k3s"), filepath.Join(k.dir, "shared"), filepath.Join(k.dir, "hub.sock")
	command := exec.Command("go", "build", "-ldflags=-s -w", "-o", k.standIn, "./test/k3s")
	command.Dir = programs.Root
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the stand-in: %v\n%s", err, out)
	}
	if err := certificates(k.shared); err != nil {
		t.Fatal(err)
	}
	plane, err := k.plane("hub", lab.User{Name: "demo", Token: demoToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	if objects != nil {
		if _, err := plane.Kubectl(t.Context(), objects, "apply", "--server-side", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	layout := framework.Layout{Replicas: 1, Provisioner: &provisioner}
	if k.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, layout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = k.hub.StopManagers()
		if t.Failed() {
			t.Logf("manager:\n%s\nprovisioner:\n%s", tail(k.hub.Manager.LogFile()), tail(k.hub.Provisioner.Process.LogFile()))
		}
	})
	create(t, k.hub.Plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: teamSpace}})
	if err := k.hub.Provisioner.Bind(t.Context(), teamSpace); err != nil {
		t.Fatal(err)
	}
	k.lead(t)
	k.startNetwork(t)
	return k
}

func (k *k3s) startNetwork(t *testing.T) {
	t.Helper()
	var err error
	k.network, err = lab.Command{Name: "network", Path: "unshare", Args: []string{"--net", "--fork", "--kill-child", "sh", "-c", switchOf}, LogFile: filepath.Join(k.dir, "network.log")}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.network.Kill() })
	testkit.Eventually(t, k3sPatience, func(context.Context) error {
		if raw, err := os.ReadFile(filepath.Join(k.dir, "network.log")); err != nil || !strings.Contains(string(raw), "ready") {
			return fmt.Errorf("the network is not there: %s (%w)", raw, err)
		}
		return nil
	})
}

// lead listens on the socket, which is the machines' only access to the hub.
func (k *k3s) lead(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", k.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", k.hub.Address)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

// start starts a machine that has joined with a command. Its agent has some additional variables.
func (k *k3s) start(t *testing.T, name, command string, variables ...string) {
	t.Helper()
	m := k.machine(k.t) // its folders outlive the subtest
	m.join(command)
	k.machines[name] = m
	k.made++
	tools := m.path("tools")
	settings, err := json.Marshal(map[string]string{
		"Out": m.dir, "Shared": k.shared, "Address": addressOf(k.made), "Etcd": k.assets[lab.Etcd], "Etcdutl": k.assets[lab.Etcdutl], "APIServer": k.assets[lab.APIServer], "Kubectl": k.programs.Kubectl, "Agent": k.programs.Agent})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(tools, 0o700), os.Link(k.standIn, filepath.Join(tools, "k3s")), os.Symlink("k3s", filepath.Join(tools, "systemctl")),
		os.WriteFile(filepath.Join(tools, "settings.json"), settings, 0o600), os.WriteFile(filepath.Join(tools, "install.sh"), []byte(strings.ReplaceAll(installScript, "@OUT@", m.dir)), 0o700)); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--net"}, inNamespaces(m.dir, name, "sh", "-c", connected, m.dir, addressOf(k.made), k.hub.Address, k.socket, filepath.Join(tools, "k3s"), m.path("bin", "drover-host-agent"), "run")...)
	process, err := lab.Command{
		Name: "machine-" + name, Path: "unshare", Args: args, Env: append(append(m.env(), variables...), "PATH="+tools+":/usr/local/bin:"+os.Getenv("PATH")), LogFile: m.path("agent.log"),
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	m.process = process
	k.t.Cleanup(func() {
		_ = process.Kill()
		if k.t.Failed() {
			k.t.Logf("%s ran %s\nagent:\n%s\nk3s:\n%s", name, ran(k.t, m.path("ran")), tail(m.path("agent.log")), tail(m.path("k3s.log")))
		}
	})
	link := fmt.Sprint("veth", k.made)
	cable := []string{"--target", strconv.Itoa(k.network.PID()), "--net", "ip", "link", "add", link, "master", "br0", "up", "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(process.PID())}
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		ours, err := os.Readlink("/proc/self/ns/net")
		if its, errIts := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", process.PID())); err != nil || errIts != nil || its == ours {
			return fmt.Errorf("%s has no network of its own yet (%w)", name, errors.Join(err, errIts))
		}
		if out, err := exec.CommandContext(ctx, "nsenter", cable...).CombinedOutput(); err != nil {
			return fmt.Errorf("connect %s: %w: %s", name, err, out)
		}
		return nil
	})
}

// certificates creates the certificates that k3s creates for itself: for a CA, for API servers and for one user.
func certificates(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: []string{"system:masters"}}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		}
	}
	ca := template("ca")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caKey, err := writeCertificate(dir, "ca", ca, ca, nil)
	if err != nil {
		return err
	}
	server := template("kube-apiserver")
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	for n := 1; n < 10; n++ {
		server.IPAddresses = append(server.IPAddresses, net.ParseIP(addressOf(n)))
	}
	admin := template("admin")
	admin.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	_, errServer := writeCertificate(dir, "server", server, ca, caKey)
	_, errAdmin := writeCertificate(dir, "admin", admin, ca, caKey)
	return errors.Join(errServer, errAdmin)
}

// writeCertificate writes a certificate and its key. Without a key of an issuer, the certificate is self-signed.
func writeCertificate(dir, name string, template, issuer *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), by)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, errors.Join(
		os.WriteFile(filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600))
}
