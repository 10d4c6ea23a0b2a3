import path = require('node:path')
import loadAddon = require('@rdmakit/verbs/load-addon')

const addon: unknown = loadAddon('@rdmakit/nbd-client', path.dirname(__dirname), 'nbd_client')

export = addon
