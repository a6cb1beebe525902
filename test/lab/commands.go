// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	loopback     = "127.0.0.1"
	serviceRange = "10.0.0.0/24"
	serviceIP    = "10.0.0.1"

	// frontProxy is the name of the user that the API server authenticates as when it connects to aggregated APIs.
	frontProxy = "front-proxy"
)

// authorities are the certificate authorities of a plane. etcd has its own, so that no certificate of the cluster is
// valid for the database.
type authorities struct{ cluster, etcd *authority }

// openPKI creates the certificates that the programs need. It keeps existing authorities and the ServiceAccount key.
func openPKI(dir string, nodes *NodeSupport) (authorities, error) {
	cluster, err := openAuthority(dir, "ca")
	if err != nil {
		return authorities{}, err
	}
	etcd, err := openAuthority(dir, "etcd-ca")
	if err != nil {
		return authorities{}, err
	}
	if _, err := openKey(filepath.Join(dir, "sa.key")); err != nil {
		return authorities{}, err
	}
	hosts := []string{
		loopback, "localhost", serviceIP,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	if nodes != nil {
		hosts = append(hosts, nodes.Address)
		id := identity{user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}
		if err := issueTo(dir, "kubelet-client", cluster, id); err != nil {
			return authorities{}, err
		}
		if err := issueFrontProxy(dir); err != nil {
			return authorities{}, err
		}
	}
	return authorities{cluster: cluster, etcd: etcd}, errors.Join(
		issueTo(dir, "apiserver", cluster, identity{user: "kube-apiserver", hosts: hosts}),
		issueTo(dir, "etcd", etcd, identity{user: "etcd", hosts: []string{loopback}}),
		issueTo(dir, "etcd-client", etcd, identity{user: "kube-apiserver"}),
	)
}

// issueFrontProxy issues the certificate that the API server presents to aggregated APIs. The certificate has its own
// authority.
func issueFrontProxy(dir string) error {
	front, err := openAuthority(dir, frontProxy+"-ca")
	if err != nil {
		return err
	}
	return issueTo(dir, frontProxy, front, identity{user: frontProxy})
}

func issueTo(dir, name string, ca *authority, id identity) error {
	pair, err := ca.issue(id)
	if err != nil {
		return err
	}
	return pair.write(dir, name)
}

// credential returns a client certificate for use in a kubeconfig.
func (a *authority) credential(id identity) (*clientcmdapi.AuthInfo, error) {
	pair, err := a.issue(id)
	if err != nil {
		return nil, err
	}
	return &clientcmdapi.AuthInfo{ClientCertificateData: pair.cert, ClientKeyData: pair.key}, nil
}

func (p *ControlPlane) pkiFile(name string) string { return filepath.Join(p.options.Dir, "pki", name) }

// command returns the Command for one of the plane's programs.
func (p *ControlPlane) command(program string) (Command, error) {
	var args []string
	var err error
	grace := 3 * time.Second
	switch program {
	case Etcd:
		args = p.etcdArgs()
		grace = 5 * time.Second
	case APIServer:
		args, err = p.apiServerArgs()
	case ControllerManager:
		args, err = p.controllerManagerArgs()
	case Scheduler:
		args, err = p.schedulerArgs()
	default:
		err = errors.New("not a part of a control plane")
	}
	if err != nil {
		return Command{}, fmt.Errorf("configure %s: %w", program, err)
	}
	file := p.options.Name + "-" + program
	return Command{
		Name:     program + " of " + p.options.Name,
		Path:     p.options.Assets[program],
		Args:     append(args, p.options.ExtraArgs[program]...),
		Env:      append(cleanEnvironment(os.Environ()), p.options.ExtraEnv...),
		WorkDir:  p.options.Dir,
		LogFile:  filepath.Join(p.options.LogDir, file+".log"),
		PIDFile:  filepath.Join(p.options.PIDDir, file+pidSuffix),
		Detached: p.options.Detached,
		Grace:    grace,
	}, nil
}

// cleanEnvironment removes variables that would configure the programs.
func cleanEnvironment(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, entry := range environ {
		if !strings.HasPrefix(entry, "ETCD_") && !strings.HasPrefix(entry, "KUBE") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// etcdSocket is where the API server reaches etcd, below the folder of the plane, in which both programs run. Only the
// owner can enter pki. The API server opens a connection for each kind of object, and the handshakes of TLS would take
// a fifth of the CPU time that a plane needs to start.
const etcdSocket = "unix://pki/etcd.sock"

func (p *ControlPlane) etcdArgs() []string {
	client := loopbackURL(p.ports.etcd.port)
	return []string{
		"--name=default",
		"--data-dir=" + filepath.Join(p.options.Dir, "etcd"),
		"--listen-client-urls=" + client + "," + etcdSocket,
		"--advertise-client-urls=" + client,
		// A single member has no peers, but etcd always listens for peers.
		"--listen-peer-urls=" + loopbackURL(0),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + p.pkiFile("etcd-ca.crt"),
		"--peer-cert-file=" + p.pkiFile("etcd.crt"),
		"--peer-key-file=" + p.pkiFile("etcd.key"),
		"--client-cert-auth",
		"--trusted-ca-file=" + p.pkiFile("etcd-ca.crt"),
		"--cert-file=" + p.pkiFile("etcd.crt"),
		"--key-file=" + p.pkiFile("etcd.key"),
		"--socket-reuse-port", // the port is leased; see portLease
		"--unsafe-no-fsync=" + strconv.FormatBool(!p.options.Durable),
		"--log-level=warn",
	}
}

func loopbackURL(port int) string { return "https://" + loopback + ":" + strconv.Itoa(port) }

func (p *ControlPlane) apiServerArgs() ([]string, error) {
	args := []string{
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		"--secure-port=" + strconv.Itoa(p.ports.api.port),
		"--permit-port-sharing", // the port is leased; see portLease
		// The default reconciler rejects loopback addresses and would retry forever.
		"--endpoint-reconciler-type=none",
		"--etcd-servers=" + etcdSocket,
		"--tls-cert-file=" + p.pkiFile("apiserver.crt"),
		"--tls-private-key-file=" + p.pkiFile("apiserver.key"),
		"--client-ca-file=" + p.pkiFile("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.pkiFile("sa.key"),
		"--service-account-signing-key-file=" + p.pkiFile("sa.key"),
		"--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=Node,RBAC",
		"--allow-privileged",
		"--profiling=false",
	}
	if p.options.Nodes != nil {
		more, err := p.nodeArgs()
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	if len(p.options.Users) == 0 {
		return args, nil
	}
	tokens, err := tokenFile(p.options.Users)
	if err != nil {
		return nil, err
	}
	path := p.pkiFile("tokens.csv")
	return append(args, "--token-auth-file="+path), writeFileAtomic(path, tokens, 0o600)
}

func (p *ControlPlane) controllerManagerArgs() ([]string, error) {
	path, err := p.componentKubeconfig(ControllerManager)
	if err != nil {
		return nil, err
	}
	return []string{
		"--kubeconfig=" + path,
		"--secure-port=0", // the lab does not use this port
		"--leader-elect=false",
		// With the default of 20 requests per second, it takes 5 s to create the 40 ServiceAccounts.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + p.pkiFile("sa.key"),
		"--root-ca-file=" + p.pkiFile("ca.crt"),
		"--cluster-signing-cert-file=" + p.pkiFile("ca.crt"),
		"--cluster-signing-key-file=" + p.pkiFile("ca.key"),
		"--service-cluster-ip-range=" + serviceRange,
		// By default, the controller manager creates a folder below /usr if it has permission to do so.
		"--flex-volume-plugin-dir=" + filepath.Join(p.options.Dir, "flexvolume"),
		"--profiling=false",
	}, nil
}

func (p *ControlPlane) schedulerArgs() ([]string, error) {
	path, err := p.componentKubeconfig(Scheduler)
	if err != nil {
		return nil, err
	}
	return []string{"--kubeconfig=" + path, "--secure-port=0", "--leader-elect=false", "--profiling=false"}, nil
}

// componentKubeconfig writes the kubeconfig of one of the plane's programs and returns the file's path. The user in
// the kubeconfig is the one in Kubernetes' default role bindings.
func (p *ControlPlane) componentKubeconfig(program string) (string, error) {
	user := "system:" + program
	credential, err := p.pki.cluster.credential(identity{user: user})
	if err != nil {
		return "", err
	}
	config, err := p.kubeconfig(user, credential)
	if err != nil {
		return "", err
	}
	path := p.pkiFile(strings.TrimPrefix(program, "kube-") + ".kubeconfig")
	return path, writeFileAtomic(path, config, 0o600)
}
