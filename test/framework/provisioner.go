// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	core "github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/test/lab"
)

const provisionerAccount = "drover-provisioner"

// Provisioner is the provisioner of a hub.
type Provisioner struct {
	// Folders are the folders in config/ that are applied for the provisioner.
	Folders []string
	// Configure, if set, changes the configuration at each start.
	Configure func(*config.Config)
	// Process is the process that is running or ran last.
	Process *lab.Process

	hub        *Hub
	health     string
	kubeconfig string
}

// building serializes builds of the provisioner. Most tests do not need a provisioner.
var building sync.Mutex

// install applies the objects that the provisioner needs. The Deployment's pod cannot run, because the plane has no
// nodes.
func (p *Provisioner) install(ctx context.Context) error {
	if err := p.hub.applyFolders(ctx, p.Folders...); err != nil {
		return err
	}
	var err error
	if p.health, err = lab.FreeAddress(loopback); err != nil {
		return err
	}
	file := filepath.Join(p.hub.dir, "provisioner.kubeconfig")
	p.kubeconfig, err = p.hub.accountKubeconfig(ctx, managerNamespace, provisionerAccount, file)
	return err
}

// Bind grants the provisioner its rights in a namespace, with the command from docs/operations/install.md.
func (p *Provisioner) Bind(ctx context.Context, namespace string) error {
	_, err := p.hub.Kubectl(ctx, nil, "create", "rolebinding", "drover-provisioner", "--namespace="+namespace,
		"--clusterrole=drover-provisioner-workspace", "--serviceaccount="+managerNamespace+":"+provisionerAccount)
	return err
}

// Start starts or restarts the provisioner, and returns when it is ready.
func (p *Provisioner) Start(ctx context.Context) error {
	if err := p.hub.programs.buildProvisioner(ctx); err != nil {
		return err
	}
	file, err := p.configure()
	if err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(p.hub.programs.Root, "config", "provision", "deployment.yaml"))
	if err != nil {
		return fmt.Errorf("read the provisioner's Deployment: %w", err)
	}
	env, err := DeploymentEnv(manifest)
	if err != nil {
		return err
	}
	p.Process, err = lab.Command{
		Name: "provisioner", Path: p.hub.programs.Provisioner, Env: append(os.Environ(), env...),
		Args:    []string{"--config=" + file, "--kubeconfig=" + p.kubeconfig},
		LogFile: filepath.Join(p.hub.dir, "provisioner.log"),
	}.Start()
	if err != nil {
		return err
	}
	return p.Process.WaitReady(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.health+"/readyz", nil)
		if err != nil {
			return err
		}
		return expectOK(&http.Transport{DisableKeepAlives: true}, request)
	})
}

// configure writes the configuration file and returns its path.
func (p *Provisioner) configure() (string, error) {
	settings := config.Config{Program: core.Program{
		TypeMeta: metav1.TypeMeta{APIVersion: core.APIVersion, Kind: config.Kind}, Namespace: managerNamespace,
		Health: core.Port{Listen: p.health}, Metrics: core.Port{Listen: core.ListenNowhere},
	}}
	if p.Configure != nil {
		p.Configure(&settings)
	}
	content, err := yaml.Marshal(settings)
	if err != nil {
		return "", err
	}
	file := filepath.Join(p.hub.dir, "provisioner.yaml")
	return file, os.WriteFile(file, content, 0o600)
}

func (p Programs) buildProvisioner(ctx context.Context) error {
	building.Lock()
	defer building.Unlock()
	if _, err := os.Stat(p.Provisioner); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", p.Provisioner, "./cmd/drover-provisioner")
	build.Dir = p.Root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the provisioner: %w\n%s", err, out)
	}
	return nil
}
