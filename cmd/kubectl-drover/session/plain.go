// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/internal/trust"
)

// plainHub is a hub that the user reaches through a kubeconfig without having signed in.
type plainHub struct {
	*cli.Hub
	context string
	user    string // name of the user entry in the kubeconfig
	auth    *clientcmdapi.AuthInfo
	// url and ca are the address and the CA of the hub's proxy. They are empty if the proxy is not known.
	url string
	ca  []byte
	// published are the addresses that the hub publishes. They are read only if url is empty.
	published []string
}

// plain returns the hub that the kubeconfig points to. If the hub's context obtains its tokens from this plugin, plain
// returns an error, because the user has to sign in. The context's credentials are intended only for the context's own
// server, and for the proxy that the kubeconfig specifies for the same hub. They must not be sent to any other URL,
// such as the value of --hub.
func (o *options) plain(ctx context.Context) (*plainHub, error) {
	raw, err := o.RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	name, guessed, err := o.FindHub(&raw)
	if err != nil {
		return nil, err
	}
	if guessed && o.changes {
		return nil, cli.ErrGuessed(name)
	}
	context := raw.Contexts[name]
	if context == nil || raw.AuthInfos[context.AuthInfo] == nil {
		return nil, cli.ErrNoHub
	}
	p := &plainHub{context: name, user: context.AuthInfo, auth: raw.AuthInfos[context.AuthInfo]}
	if cli.SignsInAtHub(p.auth.Exec) {
		return nil, login.ErrSignedOut
	}
	if p.Hub, err = o.isHub(ctx, name); err != nil {
		return nil, err
	}
	p.url, p.ca = cli.BaseOf(&raw, name), cli.MarkOf(&raw, name).CA
	if _, atHub := cli.HubBase(cli.ServerOf(&raw, name)); atHub {
		p.ca = p.Config.CAData
	}
	o.Say("As user %s of context %s.\n", cli.Plain(p.user), cli.Plain(name))
	return p, nil
}

// session returns a session that uses the user's own credentials for the hub's proxy. The proxy accepts the same tokens
// as the hub's API server, but it does not accept client certificates.
func (p *plainHub) session(userAgent string) (*login.Session, error) {
	a := p.auth
	hasToken := a.Token != "" || a.TokenFile != "" || a.Exec != nil || a.AuthProvider != nil
	switch {
	case p.url == "":
		return nil, p.unknownProxy(hasToken)
	case !hasToken:
		return nil, fmt.Errorf("%w, user %s of the kubeconfig has no token, and the hub's proxy accepts no client "+
			"certificates: sign in with \"kubectl drover login %s --ca FILE\", or use a context with a token",
			login.ErrSignedOut, cli.Plain(p.user), cli.Quoted(p.url))
	}
	config := rest.CopyConfig(p.Config)
	config.Host, config.APIPath = p.url, ""
	config.TLSClientConfig = rest.TLSClientConfig{CAData: p.ca}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the hub at %s: %w", p.url, err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &login.Session{Issuer: p.url, CA: p.ca, Client: client, User: p.user, UserAgent: userAgent}, nil
}

// unknownProxy returns the error for a hub whose proxy has an unknown address. If the API server of the context
// publishes the address, the error contains the command to run. The address is not used without the user's consent,
// because the user's credentials would be sent there.
func (p *plainHub) unknownProxy(hasToken bool) error {
	url, context := "https://HUB", cli.Quoted(p.context)
	file := "FILE is needed if this computer does not trust the hub's certificate: ask the hub's administrator for the CA"
	if len(p.published) > 0 {
		url = p.published[0]
		file = fmt.Sprintf("This address comes from context %s: use it only if that context leads to your hub. "+
			"\"kubectl --context %s -n %s get configmap %s -o jsonpath='{.data.ca\\.crt}'\" prints the CA for FILE",
			cli.Plain(p.context), context, managerNamespace, trust.AuthorityConfigMap)
	}
	ways := fmt.Sprintf("sign in with \"kubectl drover login %s --ca FILE\"", url)
	if hasToken {
		ways += fmt.Sprintf(", or have the credentials of context %s sent there: \"kubectl drover use --hub=%s --ca FILE "+
			"--context %s\"", cli.Plain(p.context), url, context)
	}
	return fmt.Errorf("%w, and the address of the hub's proxy is not known from the kubeconfig: %s. %s",
		login.ErrSignedOut, ways, file)
}

// signedInOrPlain returns the session of a user who has signed in. If the user has not signed in, it returns a session
// with the kubeconfig's own credentials. It rejects flags that choose the user, because they would have no effect in
// the kubeconfig that the calling commands write.
func (o *options) signedInOrPlain(ctx context.Context) (*login.Session, error) {
	if choosesUser(o.Options) {
		return nil, errors.New("flags that choose the user, such as --as, --token and --user, are not supported here: " +
			"select a context of this user with --context")
	}
	session, p, err := sessionOrPlain(ctx, o)
	if p == nil {
		return session, err
	}
	if p.url == "" {
		p.published = published(ctx, p.Hub)
	}
	return p.session(o.UserAgent())
}

// choosesUser reports whether flags such as --as and --token choose the user of the hub's API server.
func choosesUser(o *cli.Options) bool {
	return !equality.Semantic.DeepEqual(o.Overrides.AuthInfo, clientcmdapi.AuthInfo{}) ||
		o.Overrides.Context.AuthInfo != ""
}

// sessionOrPlain returns the session of a user who has signed in. If the user has not signed in, it returns the hub
// that the kubeconfig points to. All commands use this function, so that they all act as the same user.
func sessionOrPlain(ctx context.Context, o *options) (*login.Session, *plainHub, error) {
	session, err := o.signedIn(ctx)
	if !errors.Is(err, login.ErrSignedOut) {
		return session, nil, err
	}
	if failed := o.publishedSession(ctx); failed != nil {
		return nil, nil, failed
	}
	p, failed := o.plain(ctx)
	if failed != nil {
		return nil, nil, neither(err, failed)
	}
	return nil, p, nil
}

// neither explains why the user has no session and why the kubeconfig cannot be used instead.
func neither(session, kubeconfig error) error {
	if errors.Is(kubeconfig, cli.ErrNoHub) {
		return fmt.Errorf("%w, or select a kubeconfig of the hub with --kubeconfig", session)
	}
	if errors.Is(kubeconfig, login.ErrSignedOut) {
		return session
	}
	return fmt.Errorf("%w; and without a session: %w", session, kubeconfig)
}

// userOf returns the kubeconfig's user entry for a session, or nil if the user has signed in.
func (o *options) userOf(s *login.Session) *clientcmdapi.AuthInfo {
	if s.User == "" {
		return nil
	}
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil {
		return nil
	}
	return raw.AuthInfos[s.User]
}

// whoAmI prints the user name and groups according to the hub's API server.
func (p *plainHub) whoAmI(ctx context.Context, out io.Writer) error {
	c, err := authenticationclient.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	review, err := c.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the hub for the user: %w", err)
	}
	var b strings.Builder
	sayUser(&b, review.Status.UserInfo, cmp.Or(p.url, p.Config.Host))
	cli.Say(&b, "  context: %s\n", p.context)
	_, err = out.Write([]byte(b.String()))
	return err
}

// clusters lists the Clusters that the user may list on the hub.
func (p *plainHub) clusters(ctx context.Context, workspace, selector string) (reachable, error) {
	chosen, err := labels.Parse(selector)
	if err != nil {
		return reachable{}, fmt.Errorf("read the label selector: %w", err)
	}
	var found v1.ClusterList
	err = p.List(ctx, &found, client.InNamespace(workspace), client.MatchingLabelsSelector{Selector: chosen})
	if err != nil {
		return reachable{}, fmt.Errorf("list Clusters as the user of context %s: %w", cli.Plain(p.context), err)
	}
	var list reachable
	for i := range found.Items {
		c := &found.Items[i]
		one := reachableCluster{Namespace: c.Namespace, Name: c.Name, Version: c.Status.Version}
		if ready := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady); ready != nil {
			one.Ready, one.Reason = string(ready.Status), ready.Reason
		}
		list.Items = append(list.Items, one)
	}
	return list, nil
}
