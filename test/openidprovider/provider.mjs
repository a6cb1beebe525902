// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// An OpenID provider of oidc-provider, with its own login and consent pages. It writes its issuer as a line of JSON, then reads lines with what to change
// {what, argument}, and answers each with a line.

import { generateKeyPairSync } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:https'
import { createInterface } from 'node:readline'
import Provider from 'oidc-provider'

console.info = console.warn = () => {} // advice for production, which would go to the output
const users = new Map([['alice', { groups: ['ops', 'others'], name: 'alice' }], ['bob', { groups: [], name: 'bob' }]])
const asked = [] // at the token endpoint: grant type, and how it ended
const server = createServer({ key: readFileSync(process.env.KEY), cert: readFileSync(process.env.CERTIFICATE) })

const key = (type, options, more) => ({ ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }), use: 'sig', ...more })

const configuration = {
  clients: [{
    client_id: 'drover', client_secret: process.env.SECRET, redirect_uris: [process.env.REDIRECT],
    grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'],
    token_endpoint_auth_method: process.env.METHOD, id_token_signed_response_alg: process.env.ALGORITHM,
  }],
  jwks: { keys: [key('rsa', { modulusLength: 2048 }, { alg: 'RS256' }), key('ec', { namedCurve: 'P-256' }, { alg: 'ES256' })] },
  cookies: { keys: ['of-the-test'] },
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
  // By default the claims of a user are at the userinfo endpoint alone.
  conformIdTokenClaims: process.env.CLAIMS !== 'id_token',
  pkce: { required: () => true },
  rotateRefreshToken: true,
  async findAccount(_, id) {
    const user = users.get(id)
    return user && { accountId: id, claims: async () => ({ sub: id, preferred_username: user.name, groups: user.groups }) }
  },
}

await new Promise((listening) => server.listen(0, '127.0.0.1', listening))
const issuer = `https://127.0.0.1:${server.address().port}`
const provider = new Provider(issuer, configuration)
const grants = new Set()
provider.on('grant.success', (ctx) => {
  asked.push(`${ctx.oidc.params.grant_type} ok`)
  grants.add(ctx.oidc.entities.Grant.jti)
})
provider.on('grant.error', (ctx, error) => asked.push(`${ctx.oidc.params?.grant_type} ${error.error} ${error.error_detail ?? ''}`))
server.on('request', provider.callback())

const changes = {
  groups: (argument) => { users.get('alice').groups = JSON.parse(argument) },
  rename: (argument) => { users.get('alice').name = argument },
  remove: (argument) => { users.delete(argument) },
  // As a user or an administrator takes the consent back.
  revoke: async () => { for (const id of grants) await (await provider.Grant.find(id))?.destroy() },
  asked: () => asked.splice(0),
}

const say = (value) => process.stdout.write(JSON.stringify(value ?? null) + '\n')
say(issuer)
for await (const line of createInterface({ input: process.stdin })) {
  const { what, argument } = JSON.parse(line)
  say(await changes[what](argument))
}
process.exit(0)
