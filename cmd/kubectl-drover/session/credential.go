// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/internal/protocol"
)

// serviceAccountPrefix precedes the namespace and name of a ServiceAccount in its user name.
const serviceAccountPrefix = "system:serviceaccount:"

// accountTokenSeconds is the lifetime of a token of a ServiceAccount: the shortest that API servers give.
const accountTokenSeconds = 600

// NewCredential makes the command "credential".
func NewCredential(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	var account bool
	var s signing
	c := &cobra.Command{
		Use: "credential", Short: "Print a token for one cluster, for tools that find clusters by ClusterProfiles",
		Long: `Print a token for one cluster as an ExecCredential (client.authentication.k8s.io/v1), for tools that find clusters by ClusterProfiles: Argo CD, Kueue, Headlamp,
multicluster-runtime. Such a tool maps the name of an access provider, "drover", to this command, with provideClusterInfo.

With --service-account the token is of the ServiceAccount that the tool runs as, is made for that cluster alone, and is good for 10 minutes; the ServiceAccount needs the right to create
its own serviceaccounts/token. Without, it is one of the user who is signed in, for that cluster alone too.`,
		Example: `  kubectl drover credential --service-account`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			asked := caller(os.Getenv(execInfo), os.Stdin)
			if asked.Cluster == nil {
				return fmt.Errorf("%s has no cluster: this command is for programs that call it, with provideClusterInfo: true", execInfo)
			}
			if err := asked.trustworthy(); err != nil {
				return err
			}
			if account {
				return o.accountToken(c, asked.Cluster.Server)
			}
			return o.userToken(c, s, asked.Cluster.Server)
		},
	}
	c.Flags().BoolVar(&account, "service-account", false, "A token of the ServiceAccount of this pod, or of the kubeconfig's context")
	s.bind(c)
	o.bindHub(c)
	return c
}

// trustworthy refuses a cluster that would give the token to another party. Whoever may write a ClusterProfile chooses
// its address, its audience, and the way to the address. The hub writes no ClusterProfile with a proxy or a TLS server
// name, with which another server could take the place of a cluster.
func (c call) trustworthy() error {
	var config struct {
		Audience string `json:"audience"`
	}
	server := c.Cluster.Server
	_ = json.Unmarshal(c.Cluster.Config.Raw, &config) // without one, the address is the audience
	switch {
	case config.Audience != "" && config.Audience != server:
		return fmt.Errorf("the ClusterProfile has the address %s and the audience %s: a token is made only for the address that it is sent to", cli.Plain(server), cli.Plain(config.Audience))
	case c.Cluster.InsecureSkipTLSVerify:
		return fmt.Errorf("the ClusterProfile has %s with insecure-skip-tls-verify: no token is sent to a server that is not verified", cli.Plain(server))
	case c.Cluster.ProxyURL != "":
		return fmt.Errorf("the ClusterProfile has %s with a proxy-url: no token is sent by way of a proxy that a ClusterProfile names; set HTTPS_PROXY", cli.Plain(server))
	case c.Cluster.TLSServerName != "":
		return fmt.Errorf("the ClusterProfile has %s with the tls-server-name %s: no token is sent to a server of another name", cli.Plain(server), cli.Plain(c.Cluster.TLSServerName))
	case !isMemberServer(server):
		return fmt.Errorf("the ClusterProfile has the address %s, which is none of one cluster at a hub, https://<hub>%s<namespace>/<name>", cli.Plain(server), protocol.PathClusters)
	}
	return nil
}

// isMemberServer reports whether an address leads to one Cluster at a hub. A token for the hub itself is good for all
// its clusters.
func isMemberServer(server string) bool {
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil || at.RawQuery != "" || at.ForceQuery || at.Fragment != "" || at.RawPath != "" {
		return false
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(at.Path, "/"), protocol.PathClusters), "/")
	return strings.HasPrefix(at.Path, protocol.PathClusters) && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}

// userToken prints the token of the user who is signed in at the hub of a server.
func (o *options) userToken(c *cobra.Command, s signing, server string) error {
	if o.issuer == "" {
		store, err := sessions()
		if err != nil {
			return err
		}
		found, err := store.List()
		if err != nil {
			return fmt.Errorf("read your sessions: %w", err)
		}
		if o.issuer, err = chooseHub(found, server); err != nil {
			return err
		}
	} else if issuer, err := login.ParseURL(o.issuer); err != nil {
		return err
	} else {
		o.issuer = issuer
	}
	cluster, found := strings.CutPrefix(strings.TrimRight(server, "/"), o.issuer+"/k8s/clusters/")
	if !found {
		return fmt.Errorf("the cluster's address %s is not one of the hub %s: no token of yours is sent there", cli.Plain(server), cli.Plain(o.issuer))
	}
	o.cluster = cluster // so that a ClusterProfile with a wrong CA or proxy cannot have a token for more
	return o.getToken(c, s)
}

// accountToken prints a token of the ServiceAccount whose credentials the kubeconfig has.
func (o *options) accountToken(c *cobra.Command, audience string) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	config, err := o.Kubeconfig().ClientConfig()
	if err != nil {
		return fmt.Errorf("find the hub: %w", err)
	}
	authentication, noAuthentication := authenticationclient.NewForConfig(config)
	core, noCore := coreclient.NewForConfig(config)
	if err := errors.Join(noAuthentication, noCore); err != nil {
		return fmt.Errorf("make a client for the hub: %w", err)
	}
	me, err := authentication.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the hub for the ServiceAccount: %w", err)
	}
	user := me.Status.UserInfo.Username
	namespace, name, found := strings.Cut(strings.TrimPrefix(user, serviceAccountPrefix), ":")
	if !found || !strings.HasPrefix(user, serviceAccountPrefix) {
		return fmt.Errorf("%s is no ServiceAccount: run this in a pod, or leave out --service-account", cli.Plain(user))
	}
	seconds := int64(accountTokenSeconds)
	made, err := core.ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a token of ServiceAccount %s/%s: %w; it needs the right to create serviceaccounts/token with its own name", namespace, name, err)
	}
	if made.Status.Token == "" {
		return errors.New("the hub made an empty token")
	}
	return printCredential(c, made.Status.Token, made.Status.ExpirationTimestamp)
}
