// Express with connect-timeout: the handler keeps running after the time-out has responded with 503.
const express = require('express')
const timeout = require('connect-timeout')
const { appendFileSync } = require('fs')

const app = express()
app.use(timeout('500ms'))
app.post('/payments', (req, res) => {
  appendFileSync(process.env.EXECUTED, 'x')
  setTimeout(() => res.headersSent || res.status(201).end(), 1000)
})
app.listen(Number(process.env.PORT), '127.0.0.1')
