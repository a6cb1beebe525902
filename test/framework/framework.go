// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package framework runs Drover on control planes of package lab.
//
// The manager's replicas and the agents are processes with the same rights as in a cluster.
package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
)

// Programs contains the paths of the binaries of one build, and the source folder.
type Programs struct {
	// PlaneEnv contains environment variables for the programs of control planes. PlaneAssets contains these
	// programs. If PlaneAssets is nil, lab.Binaries provides the programs.
	PlaneEnv    []string
	PlaneAssets lab.Assets
	// APIServerArgs are additional flags for the API servers of control planes.
	APIServerArgs  []string
	Root           string
	Manager, Agent string
	// Provisioner is the path of the provisioner, which is built when a test first starts it.
	Provisioner string
	Kubectl     string
}

// Sources returns the root folder of this module. The working directory must be in this folder or below it.
func Sources() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "PROJECT")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the sources: no folder above has a PROJECT file: run this in the repository")
		}
		dir = parent
	}
}

// Build builds the manager and the agent from the sources at root into dir, and finds kubectl.
func Build(ctx context.Context, root, dir string) (Programs, error) {
	assets, err := lab.Binaries(ctx, os.Stderr)
	if err != nil {
		return Programs{}, err
	}
	p := Programs{
		Root: root, Manager: filepath.Join(dir, "manager"), Agent: filepath.Join(dir, "drover-agent"),
		Provisioner: filepath.Join(dir, "drover-provisioner"), Kubectl: assets[lab.Kubectl],
	}
	for binary, source := range map[string]string{p.Manager: ".", p.Agent: "./agent"} {
		build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", binary, source)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			return Programs{}, fmt.Errorf("build %s: %w\n%s", source, err, out)
		}
	}
	return p, nil
}

// Plane is a control plane with its administrator's client.
type Plane struct {
	*lab.ControlPlane
	Client client.WithWatch

	programs Programs
	dir      string
}

// StartPlane starts a control plane with a controller manager. Its files are stored in dir.
func StartPlane(ctx context.Context, programs Programs, name, dir string, users ...lab.User) (*Plane, error) {
	plane, err := lab.Start(ctx, lab.Options{
		Name: name, Dir: filepath.Join(dir, name), ControllerManager: true, Users: users, Progress: os.Stderr,
		Assets: programs.PlaneAssets, ExtraEnv: programs.PlaneEnv,
		ExtraArgs: map[string][]string{
			// No kubelet renews the leases of nodes in these control planes. The excluded controller only checks the
			// types in admission policies, which takes 0.6 s of CPU for the policies of a hub.
			lab.ControllerManager: {
				"--node-monitor-grace-period=24h", "--controllers=*,-validatingadmissionpolicy-status-controller",
			},
			lab.APIServer: programs.APIServerArgs,
		},
	})
	if err != nil {
		return nil, err
	}
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1.AddToScheme(kinds), infrav1.AddToScheme(kinds), provisionv1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	config := plane.RESTConfig()
	config.QPS = -1
	c, err := client.NewWithWatch(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, errors.Join(err, plane.Stop())
	}
	p := &Plane{ControlPlane: plane, Client: c, programs: programs, dir: filepath.Join(dir, name)}
	return p, plane.WriteKubeconfig(p.adminKubeconfig())
}

// Use selects the Programs for managers and agents that start from now on, to replace one version with another.
// Running programs are not affected.
func (p *Plane) Use(programs Programs) { p.programs = programs }

// Kill ends the plane immediately. An API server with open watches would take seconds to end gracefully.
func (p *Plane) Kill() error {
	var errs []error
	for _, program := range []string{lab.ControllerManager, lab.APIServer, lab.Etcd} {
		if process := p.Process(program); process != nil {
			errs = append(errs, process.Kill())
		}
	}
	return errors.Join(append(errs, p.Stop())...)
}

func (p *Plane) adminKubeconfig() string { return filepath.Join(p.dir, "framework-admin.kubeconfig") }

// Kubectl runs kubectl as the administrator and returns its output.
func (p *Plane) Kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	return Kubectl(ctx, p.programs, p.adminKubeconfig(), stdin, args...)
}

// Kubectl runs kubectl with a kubeconfig and returns its standard output. The error contains its standard error.
func Kubectl(ctx context.Context, programs Programs, kubeconfig string, stdin []byte, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	command := exec.CommandContext(ctx, programs.Kubectl, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	command.Dir, command.Stdin, command.Stdout, command.Stderr = programs.Root, bytes.NewReader(stdin), &out, &complaint
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %v: %w: %s", args, err, complaint.String())
	}
	return out.String(), nil
}

// accountKubeconfig writes a kubeconfig for a ServiceAccount and returns its path.
func (p *Plane) accountKubeconfig(ctx context.Context, namespace, account, file string) (string, error) {
	token, err := p.accountToken(ctx, namespace, account)
	if err != nil {
		return "", err
	}
	return file, WriteKubeconfig(file, p.URL(), p.CA(), token)
}

// accountToken returns a token for a ServiceAccount that is valid for a day.
func (p *Plane) accountToken(ctx context.Context, namespace, account string) (string, error) {
	day := int64(24 * time.Hour / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := p.Client.SubResource("token").Create(ctx, object, request); err != nil {
		return "", fmt.Errorf("request token of ServiceAccount %s/%s: %w", namespace, account, err)
	}
	return request.Status.Token, nil
}

// WriteKubeconfig writes a kubeconfig for one server and one token to a file that only its owner can read.
func WriteKubeconfig(file, server string, ca []byte, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["drover"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["drover"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["drover"] = &clientcmdapi.Context{Cluster: "drover", AuthInfo: "drover"}
	config.CurrentContext = "drover"
	return clientcmd.WriteToFile(*config, file)
}

const loopback = "127.0.0.1"

// Await calls check until check returns nil. It starts with an interval of 20 ms and then calls check less often,
// because each call is a request to an API server. When ctx ends, it returns the last error from check.
func Await(ctx context.Context, check func(context.Context) error) error {
	const first, most = 20 * time.Millisecond, 100 * time.Millisecond
	for pause := first; ; pause = min(most, pause*5/4) {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}
