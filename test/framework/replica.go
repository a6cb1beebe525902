// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/balancer"
	"github.com/drover-dev/drover/test/lab"
)

// managerGrace is the maximum terminationGracePeriodSeconds of the manager's Deployment.
const managerGrace = 10 * time.Minute

// Parties of a Layout other than the managers. The party name of a manager is the name of its Replica.
const (
	PartyBalancer  = "balancer"
	PartyAPIServer = "api"
)

// Layout describes the managers of a hub and how they reach each other.
type Layout struct {
	// Replicas is the number of managers. If there are several, a balancer is started in front of them.
	Replicas int
	// Host is the loopback address that the managers listen on. It defaults to 127.0.0.1.
	Host string
	// URLs is the value of Announced from the first start. If it is empty, the managers announce the URL of the
	// balancer or of the only manager.
	URLs []string
	// Address is the address of the first manager, for example if the manager takes over the address of another hub.
	// If it is empty, a free address is used.
	Address string
	// Configure, if set, changes a manager's configuration at each start of the manager.
	Configure func(*config.Config)
	// Provisioner, if set, runs in addition to the managers.
	Provisioner *Provisioner
	// Link, if set, returns the address at which one party reaches another, so that a test can put a relay between
	// them.
	Link func(from, to, address string) (string, error)
}

// Replica is one manager.
type Replica struct {
	// Name is "manager-0" and so on, or "manager" if there is only one manager.
	Name string
	// Address is the address for agents and users. Peers is the address for the other managers, and Metrics is the
	// address for scrapers.
	Address, Peers, Metrics string
	// Process is the process that is running or ran last.
	Process *lab.Process

	hub        *Hub
	others     []string // addresses at which this manager reaches the peer ports of the other managers
	backend    string   // the address at which the balancer reaches this manager
	kubeconfig string
}

// layOut selects addresses for all managers and starts the balancer.
func (h *Hub) layOut(ctx context.Context) error {
	if h.layout.Link == nil {
		h.layout.Link = func(_, _, address string) (string, error) { return address, nil }
	}
	for i := range h.layout.Replicas {
		replica := &Replica{Name: "manager-" + strconv.Itoa(i), hub: h}
		if h.layout.Replicas == 1 {
			replica.Name = "manager"
		}
		for _, address := range []*string{&replica.Address, &replica.Peers, &replica.Metrics} {
			free, err := lab.FreeAddress(cmp.Or(h.layout.Host, loopback))
			if err != nil {
				return err
			}
			*address = free
		}
		if h.layout.Address != "" && i == 0 {
			replica.Address = h.layout.Address
		}
		h.Replicas = append(h.Replicas, replica)
	}
	if err := h.connect(ctx); err != nil {
		return err
	}
	h.Address = h.Replicas[0].Address
	if h.layout.Replicas == 1 {
		return nil
	}
	return h.startBalancer(ctx)
}

// connect gives each manager the addresses of the API server and of the other managers.
func (h *Hub) connect(ctx context.Context) error {
	token, err := h.accountToken(ctx, managerNamespace, managerAccount)
	if err != nil {
		return err
	}
	api, err := url.Parse(h.Plane.URL())
	if err != nil {
		return fmt.Errorf("read the URL of the API server: %w", err)
	}
	for _, replica := range h.Replicas {
		server, err := h.layout.Link(replica.Name, PartyAPIServer, api.Host)
		if err != nil {
			return err
		}
		replica.kubeconfig = filepath.Join(h.dir, replica.Name+".kubeconfig")
		if err := WriteKubeconfig(replica.kubeconfig, "https://"+server, h.CA(), token); err != nil {
			return err
		}
		for _, other := range h.Replicas {
			if other == replica {
				continue
			}
			address, err := h.layout.Link(replica.Name, other.Name, other.Peers)
			if err != nil {
				return err
			}
			replica.others = append(replica.others, address)
		}
	}
	return nil
}

func (h *Hub) startBalancer(ctx context.Context) error {
	var backends []string
	for _, replica := range h.Replicas {
		backend, err := h.layout.Link(PartyBalancer, replica.Name, replica.Address)
		if err != nil {
			return err
		}
		replica.backend = backend
		backends = append(backends, backend)
	}
	var err error
	if h.Balancer, err = balancer.Start(ctx, backends, h.balancerCheck()); err == nil {
		h.Address = h.Balancer.Address()
	}
	return err
}

// AwaitBalanced waits until the balancer sends connections to every manager.
func (h *Hub) AwaitBalanced(ctx context.Context) error {
	if h.Balancer == nil {
		return nil
	}
	for _, replica := range h.Replicas {
		if err := h.Balancer.Await(ctx, replica.backend, true); err != nil {
			return err
		}
	}
	return nil
}

// Start starts or restarts the manager. It returns when the manager's port is ready.
func (r *Replica) Start(ctx context.Context, moreURLs ...string) error {
	configFile, err := r.configure(moreURLs)
	if err != nil {
		return err
	}
	env, err := r.hub.managerEnv()
	if err != nil {
		return err
	}
	process, err := lab.Command{
		Name: r.Name, Path: r.hub.programs.Manager, Env: env, Args: []string{"--config=" + configFile, "--kubeconfig=" + r.kubeconfig},
		LogFile: filepath.Join(r.hub.dir, r.Name+".log"), Grace: managerGrace, Restart: lostLease,
	}.Start()
	if err != nil {
		return err
	}
	r.Process = process
	if r == r.hub.Replicas[0] {
		r.hub.Manager = process
	}
	return process.WaitReady(ctx, func(ctx context.Context) error { return r.hub.readyAt(ctx, r.Address) })
}

// lostLease reports whether a manager ended because the machine was too busy to renew its Lease. In a cluster, the
// kubelet would then restart the container. If a manager ends for any other reason, the test must fail.
func lostLease(log string) bool { return strings.HasSuffix(log, "the Lease could not be renewed") }

// configure writes the configuration file and returns its path.
func (r *Replica) configure(moreURLs []string) (string, error) {
	h := r.hub
	urls := h.Announced
	if len(urls) == 0 {
		urls = []string{h.URL()}
	}
	settings := config.Config{
		Program: config.Program{
			TypeMeta: metav1.TypeMeta{APIVersion: config.APIVersion, Kind: config.Kind}, Namespace: managerNamespace,
			Health: config.Port{Listen: config.ListenNowhere}, Metrics: config.Port{Listen: r.Metrics},
		},
		Server: config.Server{Listen: r.Address, URLs: slices.Concat(urls, moreURLs)},
	}
	if len(r.others) == 0 {
		settings.Drain.Delay = &metav1.Duration{} // there is no balancer that has to notice the shutdown
	} else {
		settings.Peers = config.Peers{Listen: r.Peers, Addresses: r.others}
	}
	if h.layout.Configure != nil {
		h.layout.Configure(&settings)
	}
	content, err := yaml.Marshal(settings)
	if err != nil {
		return "", err
	}
	file := filepath.Join(h.dir, r.Name+".yaml")
	return file, os.WriteFile(file, content, 0o600)
}

// managerEnv returns the environment of this process with the variables that the manager's Deployment adds.
func (h *Hub) managerEnv() ([]string, error) {
	manifest, err := os.ReadFile(filepath.Join(h.programs.Root, "config", "manager", "deployment.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the manager's Deployment: %w", err)
	}
	env, err := DeploymentEnv(manifest)
	return append(os.Environ(), env...), err
}

// readyAt returns nil if the manager at an address is ready. Otherwise, it returns the reason.
func (h *Hub) readyAt(ctx context.Context, address string) error {
	roots, err := h.roots(ctx)
	if err != nil {
		return err
	}
	return readyz(ctx, address, roots)
}

func (h *Hub) roots(ctx context.Context) (*x509.CertPool, error) {
	bundle, err := h.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, errors.New("read the hub's CA: it has no certificate")
	}
	return roots, nil
}

// balancerCheck is like readyAt, but reads the hub's CA only when necessary. A balancer must not depend on the hub's
// API server.
func (h *Hub) balancerCheck() balancer.Check {
	var mu sync.Mutex // guards known
	var known *x509.CertPool
	return func(ctx context.Context, backend string) error {
		mu.Lock()
		roots := known
		mu.Unlock()
		var unknown x509.UnknownAuthorityError
		if roots != nil {
			if err := readyz(ctx, backend, roots); !errors.As(err, &unknown) {
				return err
			}
		}
		roots, err := h.roots(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		known = roots
		mu.Unlock()
		return readyz(ctx, backend, roots)
	}
}

func readyz(ctx context.Context, address string, roots *x509.CertPool) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	return expectOK(transport, request)
}

// AwaitServed waits until a replica serves requests for a member with the given token.
func (h *Hub) AwaitServed(ctx context.Context, replica *Replica, cluster types.NamespacedName, token string) error {
	roots, err := h.roots(ctx)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	return Await(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+replica.Address+"/k8s/clusters/"+cluster.String()+"/version", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		return expectOK(transport, request)
	})
}

func expectOK(transport http.RoundTripper, request *http.Request) error {
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %d", request.URL, response.StatusCode)
	}
	return nil
}
