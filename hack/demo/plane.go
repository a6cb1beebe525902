// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// plane is a control plane that serves requests, together with the administrator's access.
type plane struct {
	kubeconfig string // path
	config     *rest.Config
	client     client.Client
}

// beginHubPlane starts the hub's control plane in parallel with the next steps.
func (d *demo) beginHubPlane(ctx context.Context) (string, error) {
	args, err := d.issuerArgs(d.apiServerRuns())
	if err != nil {
		return "", err
	}
	d.hubStart = d.begin(func() (err error) {
		d.hub, err = d.startPlane(ctx, lab.Options{
			Name: hub, Users: []lab.User{{Name: "demo", Token: d.state.DemoToken}},
			ExtraArgs: map[string][]string{lab.APIServer: args},
		})
		return err
	})
	return "", nil
}

// beginMemberPlane starts the member's control plane. It is called when the hub's manager runs, because the API server
// needs 10 s to trust the manager's issuer and uses little CPU time meanwhile.
func (d *demo) beginMemberPlane(ctx context.Context) (string, error) {
	d.memberStart = d.begin(func() (err error) {
		d.member, err = d.startPlane(ctx, lab.Options{Name: member, ExtraArgs: map[string][]string{
			// Nothing renews the leases of simulated nodes.
			lab.ControllerManager: {"--controllers=*,-node-lifecycle-controller"},
		}})
		return err
	})
	return "", nil
}

func (d *demo) awaitHubPlane(context.Context) (string, error) { return "", d.hubStart.wait() }

func (d *demo) awaitMemberPlane(context.Context) (string, error) {
	return "", d.memberStart.wait()
}

// startPlane leaves a plane running if it was started with the current programs and options. Otherwise, it starts the
// plane with the existing data.
func (d *demo) startPlane(ctx context.Context, options lab.Options) (*plane, error) {
	name := options.Name
	programs := []string{lab.Etcd, lab.APIServer, lab.ControllerManager}
	from := []string{fmt.Sprint(options.Users, options.ExtraArgs)}
	names := make([]string, 0, len(programs))
	whole := true
	for _, program := range programs {
		from = append(from, d.assets[program])
		names = append(names, name+"-"+program)
		whole = whole && d.running(name+"-"+program)
	}
	kubeconfig := d.files.kubeconfig(name)
	if whole && d.state.startedFrom(name) == digest(from) {
		if p, err := openPlane(ctx, kubeconfig); err == nil {
			return p, nil
		}
	}
	if err := lab.StopDetached(ctx, d.files.pids(), names...); err != nil {
		return nil, err
	}
	options.Dir, options.LogDir, options.PIDDir = d.files.file(name), d.files.logs(), d.files.pids()
	options.Assets, options.ControllerManager, options.Detached = d.assets, true, true
	started, err := lab.Start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("%w\nrun \"make demo-down\" to start afresh", err)
	}
	if err := started.WriteKubeconfig(kubeconfig); err != nil {
		return nil, err
	}
	if err := d.state.setStarted(name, digest(from)); err != nil {
		return nil, err
	}
	return openPlane(ctx, kubeconfig)
}

// openPlane returns the plane of a kubeconfig. It returns an error if the plane does not serve the administrator.
func openPlane(ctx context.Context, kubeconfig string) (*plane, error) {
	if err := answers(ctx, kubeconfig, "/readyz"); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // the API server has its own limits
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", config.Host, err)
	}
	return &plane{kubeconfig: kubeconfig, config: config, client: c}, nil
}

// apply applies manifests as the plane's administrator.
func (p *plane) apply(ctx context.Context, manifests []byte) error {
	return framework.Apply(ctx, p.client, manifests, client.ForceOwnership)
}

// answers returns nil if an API server serves a path to the user of a kubeconfig. Otherwise, it returns the reason.
func answers(ctx context.Context, kubeconfig, path string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer c.CloseIdleConnections()
	return get(ctx, c, config.Host+path)
}

// get returns an error unless the status of the response is 200.
func get(ctx context.Context, c *http.Client, url string) error {
	_, err := read(ctx, c, url)
	return err
}

// read returns the body of the response. It returns an error unless the status is 200.
func read(ctx context.Context, c *http.Client, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// tokenFor creates a token for a ServiceAccount. The token is valid for longer than any demo runs.
func (p *plane) tokenFor(ctx context.Context, namespace, name string) (string, error) {
	seconds := int64((10 * 365 * 24 * time.Hour).Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := p.client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("make a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return request.Status.Token, nil
}
